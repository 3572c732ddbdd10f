"""A small convolutional network that reads handwritten digits (8 × 8 pixels)."""

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset


def build(arguments):
    """Return what dlctl's training loop needs."""
    train, test = load_digits()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, 10),
    )
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=arguments.get("lr", 0.002)),
        "loss": nn.CrossEntropyLoss(),
        "train": train,
        "validation": test,
        "metrics": {"accuracy": accuracy},
    }


def accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).float().mean()


def load_digits():
    """Return training and test data: every fifth sample is for testing."""
    with gzip.open(find_data(), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(table[:, -1]).long()
    test = torch.zeros(len(labels), dtype=torch.bool)
    test[::5] = True
    return (
        TensorDataset(images[~test], labels[~test]),
        TensorDataset(images[test], labels[test]),
    )


def find_data():
    """Return the data file in DATA_DIR, or else the copy next to this file."""
    given = Path(os.environ.get("DATA_DIR", ""), "digits.csv.gz")
    return given if given.is_file() else Path(__file__).with_name("data") / "digits.csv.gz"
