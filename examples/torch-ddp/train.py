"""A plain PyTorch DistributedDataParallel script. It knows nothing about dlctl.

It runs the same under torchrun: `torchrun --nproc-per-node 2 train.py --epochs 10`.
"""

import argparse
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load_digits():
    path = Path(__file__).with_name("data") / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1]) / 16
    labels = torch.from_numpy(table[:, -1]).long()
    test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~test], labels[~test]), (images[test], labels[test])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.003)
    options = parser.parse_args()

    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    train, (test_images, test_labels) = load_digits()
    layers = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    sampler = DistributedSampler(train, seed=0)
    loader = DataLoader(train, batch_size=64 // size, sampler=sampler)

    accuracy = 0.0
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
        if rank == 0:
            text = f"epoch {epoch + 1}  loss {loss.item():.4f}  test accuracy {accuracy:.4f}"
            print(text, flush=True)

    if rank == 0:
        folder = Path(os.environ.get("RESULT_DIR", "."))
        torch.save(model.module.state_dict(), folder / "model.pt")
        print(f"trained by {size} processes, test accuracy {accuracy:.4f}", flush=True)
    dist.destroy_process_group()
    # gloo of torch 2.13 aborts at times while the interpreter ends, after all work is done.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
