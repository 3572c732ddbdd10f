"""Lightning with one process per learner; its ModelCheckpoint saves into CHECKPOINT_DIR.

LightningEnvironment reads torchrun's variables, which dlctl sets, and never requeues a Slurm job.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import lightning as L
import torch
from digits import load_digits
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from torch.utils.data import DataLoader, TensorDataset

HALTED = 85


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.003)


class SaveAtHalt(Callback):
    """Saves after the step in which any learner got the signal; all of them stop there."""

    def __init__(self, folder):
        self.folder, self.asked = folder, False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_):
        self.asked = True

    def on_train_batch_end(self, trainer, module, *_):
        asked = torch.tensor(float(self.asked))
        if float(trainer.strategy.reduce(asked, reduce_op="sum")) > 0:
            trainer.save_checkpoint(self.folder / f"step={trainer.global_step}.ckpt")
            sys.stdout.flush()
            os._exit(HALTED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    L.seed_everything(1)
    learners = int(os.environ["WORLD_SIZE"])
    train, test = (TensorDataset(*map(torch.from_numpy, part)) for part in load_digits())
    folder = Path(os.environ["CHECKPOINT_DIR"])
    saved = sorted(folder.glob("step=*.ckpt"), key=lambda path: int(path.stem[5:]))
    trainer = L.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=learners // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp" if learners > 1 else "auto",
        plugins=[TorchElasticEnvironment()],
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            ModelCheckpoint(folder, "{step}", every_n_train_steps=20, save_top_k=-1),
            SaveAtHalt(folder),
        ],
    )
    model = Digits()
    if saved:
        print(f"continuing from {saved[-1].name}", flush=True)
    batches = DataLoader(train, 64 // learners, shuffle=True)
    trainer.fit(model, batches, ckpt_path=saved[-1] if saved else None)
    if trainer.global_rank == 0:
        images, labels = test.tensors
        accuracy = (model.net(images).argmax(1) == labels).float().mean().item()
        torch.save(model.state_dict(), Path(os.environ["RESULT_DIR"], "model.pt"))
        print(f"trained by {learners} learners, test accuracy {accuracy:.4f}", flush=True)
    sys.stdout.flush()
    os._exit(0)


main()
