"""Hugging Face's Trainer: a small model of one's own, saved as checkpoint-<step>."""

import argparse
import os
import sys
from pathlib import Path

import torch
from digits import load_digits
from transformers import Trainer, TrainingArguments

from learner.adapters import hugging_face


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self.net = torch.nn.Sequential(*layers)

    def forward(self, images, labels=None):
        logits = self.net(images)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    torch.manual_seed(1)
    (images, labels), (test_images, test_labels) = load_digits()
    pairs = zip(images, labels, strict=True)
    samples = [{"images": torch.from_numpy(x), "labels": int(y)} for x, y in pairs]
    learners, halt = int(os.environ["WORLD_SIZE"]), hugging_face.save_at_halt()
    trainer = Trainer(
        Net(),
        TrainingArguments(
            os.environ["CHECKPOINT_DIR"], max_steps=options.steps,
            per_device_train_batch_size=64 // learners, learning_rate=0.003,
            ddp_find_unused_parameters=False, save_strategy="steps", save_steps=20,
            save_total_limit=2, logging_steps=50, report_to=[], use_cpu=True, disable_tqdm=True,
            seed=1,
        ),
        train_dataset=samples, callbacks=[halt],
    )  # fmt: skip
    saved = hugging_face.newest_checkpoint()
    if saved:
        print(f"continuing at step {saved.rpartition('-')[2]}", flush=True)
    trainer.train(resume_from_checkpoint=saved)
    halt.leave_if_halted()
    if int(os.environ["RANK"]) == 0:
        model = trainer.model.cpu()
        with torch.no_grad():
            loss = model(torch.from_numpy(images), torch.from_numpy(labels))["loss"].item()
            chosen = model(torch.from_numpy(test_images))["logits"].argmax(1).numpy()
        torch.save(model.state_dict(), Path(os.environ["RESULT_DIR"], "model.pt"))
        accuracy = (chosen == test_labels).mean()
        print(f"trained by {learners} learners, final loss {loss:.6f}, "
              f"test accuracy {accuracy:.4f}", flush=True)  # fmt: skip
    sys.stdout.flush()
    os._exit(0)


main()
