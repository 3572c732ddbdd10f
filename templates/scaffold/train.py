"""Tell two spirals apart. Each learner calls build(arguments) and trains what it returns."""

import numpy
import torch
from torch import nn
from torch.utils.data import TensorDataset


def spirals(count, seed):
    """Return points on two spirals (float32, shape (count, 2)) and the spiral of each."""
    random = numpy.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    radius = numpy.sqrt(random.random(count))
    angle = 3 * numpy.pi * radius + numpy.pi * labels
    points = numpy.stack([radius * numpy.cos(angle), radius * numpy.sin(angle)], axis=1)
    points += random.normal(0, 0.02, points.shape)
    return TensorDataset(
        torch.tensor(points, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)
    )


def accuracy(outputs, targets):
    """Return the share of correct answers in a batch."""
    return (outputs.argmax(dim=1) == targets).float().mean()


def build(arguments):
    """Return what to train. `arguments` is framework.arguments of the manifest."""
    hidden = int(arguments.get("hidden", 64))
    model = nn.Sequential(
        nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)
    )
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=float(arguments.get("lr", 0.01))),
        "loss": nn.functional.cross_entropy,
        "train": spirals(2000, seed=1),
        "validation": spirals(500, seed=2),
        "metrics": {"accuracy": accuracy},
    }
