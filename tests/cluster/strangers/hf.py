"""As transformers' examples: `output_dir` is a relative path, and the last checkpoint goes on."""

import os
import time

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint


class Pause(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        print("saved step", state.global_step, flush=True)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4 and not last:
            time.sleep(600)  # until the halt ends it


torch.manual_seed(1)
tokens = torch.randint(0, 32, (16, 8))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
args = TrainingArguments(
    output_dir="out",
    max_steps=8,
    save_steps=2,
    logging_steps=2,
    per_device_train_batch_size=2,
    report_to=[],
    use_cpu=True,
)
last = get_last_checkpoint("out") if os.path.isdir("out") else None
trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[Pause()])
done = trainer.train(resume_from_checkpoint=last)
print("resumed from", last, "at", done.global_step)
trainer.save_model()
trainer.save_state()
