"""Hugging Face's Trainer: a small model of one's own, saved as checkpoint-<step>."""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from digits import load_digits
from transformers import Trainer, TrainerCallback, TrainingArguments

HALTED = 85


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self.net = torch.nn.Sequential(*layers)

    def forward(self, images, labels=None):
        logits = self.net(images)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class SaveAtHalt(TrainerCallback):
    """Saves and stops after the step in which any learner got the signal."""

    def __init__(self):
        self.asked = self.halted = False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_):
        self.asked = True

    def on_step_end(self, args, state, control, **_):
        asked = torch.tensor(float(self.asked))
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(asked)
        if float(asked) > 0:
            control.should_save = control.should_training_stop = self.halted = True
        return control


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    (images, labels), (test_images, test_labels) = load_digits()
    pairs = zip(images, labels, strict=True)
    samples = [{"images": torch.from_numpy(x), "labels": int(y)} for x, y in pairs]
    learners, halt = int(os.environ["WORLD_SIZE"]), SaveAtHalt()
    folder = Path(os.environ["CHECKPOINT_DIR"])
    trainer = Trainer(
        Net(),
        TrainingArguments(
            str(folder), max_steps=options.steps, per_device_train_batch_size=64 // learners,
            learning_rate=0.003, ddp_find_unused_parameters=False, save_strategy="steps",
            save_steps=20, save_total_limit=2, logging_steps=50, report_to=[], use_cpu=True,
            disable_tqdm=True, seed=1,
        ),
        train_dataset=samples, callbacks=[halt],
    )  # fmt: skip
    resumes = any(folder.glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=resumes)
    if halt.halted:
        sys.stdout.flush()
        os._exit(HALTED)
    if int(os.environ["RANK"]) == 0:
        with torch.no_grad():
            chosen = trainer.model.cpu()(torch.from_numpy(test_images))["logits"].argmax(1).numpy()
        torch.save(trainer.model.state_dict(), Path(os.environ["RESULT_DIR"], "model.pt"))
        accuracy = (chosen == test_labels).mean()
        print(f"trained by {learners} learners, test accuracy {accuracy:.4f}", flush=True)
    sys.stdout.flush()
    os._exit(0)


main()
