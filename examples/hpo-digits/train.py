"""A small convolutional network that reads handwritten digits, as a trial of a search."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset


def build(arguments):
    """Return what dlctl's training loop needs."""
    train, validation = load_digits()
    width = arguments.get("width", 16)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(arguments.get("dropout", 0.3)),
        nn.Linear(width * 16, 10),
    )
    return {
        "model": model,
        "optimizer": make_optimizer(model, arguments),
        "loss": nn.CrossEntropyLoss(),
        "train": train,
        "validation": validation,
        "metrics": {"accuracy": accuracy},
    }


def make_optimizer(model, arguments):
    lr = arguments.get("lr", 0.002)
    if arguments.get("optimizer", "adam") == "adam":
        return torch.optim.Adam(model.parameters(), lr=lr)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=arguments["momentum"])


def accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).float().mean()


def load_digits():
    """Return training and validation data: every fifth sample is for validation."""
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(table[:, -1]).long()
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[::5] = True
    return (
        TensorDataset(images[~held_out], labels[~held_out]),
        TensorDataset(images[held_out], labels[held_out]),
    )
