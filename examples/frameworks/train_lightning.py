"""Lightning with one process per learner; its ModelCheckpoint saves into CHECKPOINT_DIR.

TorchElasticEnvironment reads torchrun's variables, which dlctl sets, and never requeues a Slurm
job. Lightning does not go on in the middle of an epoch's data, so `Batches` does.
"""

import argparse
import os
import sys
from pathlib import Path

import lightning as L
import torch
from digits import load_digits
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from torch.utils.data import DataLoader, TensorDataset

from learner.adapters import Batches, lightning


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    L.seed_everything(1)
    rank, learners = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    train, test = (TensorDataset(*map(torch.from_numpy, part)) for part in load_digits())
    saved, done = lightning.newest_checkpoint()
    trainer = L.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=learners // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp" if learners > 1 else "auto",
        plugins=[TorchElasticEnvironment()],
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            ModelCheckpoint(
                os.environ["CHECKPOINT_DIR"], "{step}", every_n_train_steps=20, save_top_k=-1
            ),
            lightning.save_at_halt(),
        ],
    )
    model = Digits()
    if saved:
        print(f"continuing at step {done}", flush=True)
    batches = Batches(len(train), 64, done, seed=1, rank=rank, learners=learners)
    trainer.fit(model, DataLoader(train, batch_sampler=batches), ckpt_path=saved)
    if rank == 0:
        with torch.no_grad():
            images, labels = train.tensors
            loss = torch.nn.functional.cross_entropy(model.net(images), labels).item()
            images, labels = test.tensors
            accuracy = (model.net(images).argmax(1) == labels).float().mean().item()
        torch.save(model.state_dict(), Path(os.environ["RESULT_DIR"], "model.pt"))
        print(f"trained by {learners} learners, final loss {loss:.6f}, "
              f"test accuracy {accuracy:.4f}", flush=True)  # fmt: skip
    sys.stdout.flush()
    os._exit(0)


main()
