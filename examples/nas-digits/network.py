"""One network of the search: a module of convolutions, repeated, which reads handwritten digits."""

import gzip
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from search.tasks import BaseTask, Order

EPOCHS = 3
BATCH = 64
KERNELS = ("kernel_1", "kernel_2", "kernel_3", "kernel_4")


class Network(BaseTask):
    """Trains a network for three epochs on one processor.

    Args:
        layers: convolutions in the module.
        repeats: how often the module is repeated: the network has layers × repeats convolutions.
        width: channels.
        skip: whether each module's input is added to its output.
        lr: the learning rate.
        kernels: `kernel_1` and so on, 3 or 5, one for each layer of the module.
    """

    def __init__(self, layers, repeats, width, skip, lr, **kernels):
        self.layers, self.repeats, self.width, self.skip, self.lr = (
            layers, repeats, width, skip, lr,
        )  # fmt: skip
        self.kernels = [kernels[name] for name in KERNELS[:layers]]

    def run(self):
        """Return the loss and the accuracy on the fifth of the digits that is held out."""
        torch.set_num_threads(1)
        torch.manual_seed(0)
        began = time.process_time()
        (images, labels), (held_out, answers) = load_digits()
        network = self.build()
        optimizer = torch.optim.SGD(network.parameters(), lr=self.lr, momentum=0.9)
        loss_of = nn.CrossEntropyLoss()
        for epoch in range(EPOCHS):
            for batch in torch.randperm(len(labels)).split(BATCH):
                optimizer.zero_grad()
                loss_of(network(images[batch]), labels[batch]).backward()
                optimizer.step()
            network.eval()
            with torch.no_grad():
                outputs = network(held_out)
            network.train()
            # A network that has diverged is a bad one, and no failure: 20 is worse than guessing.
            loss = min(20.0, torch.nan_to_num(loss_of(outputs, answers), nan=20.0).item())
            if self.report(epoch, loss=loss) is not Order.CONTINUE:
                break
        return {
            "loss": loss,
            "accuracy": (outputs.argmax(dim=1) == answers).float().mean().item(),
            "depth": self.layers * self.repeats,
            "cpu_s": time.process_time() - began,
        }

    def build(self):
        """Return the network."""
        modules = [Module(self.kernels, self.width, self.skip) for _ in range(self.repeats)]
        return nn.Sequential(
            nn.Conv2d(1, self.width, 3, padding=1), *modules,
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * self.width, 10),
        )  # fmt: skip


class Module(nn.Module):
    """Convolutions with normalization; what the search repeats."""

    def __init__(self, kernels, width, skip):
        super().__init__()
        self.skip = skip
        self.layers = nn.Sequential(*[
            nn.Sequential(
                nn.Conv2d(width, width, kernel, padding=kernel // 2, bias=False),
                nn.BatchNorm2d(width), nn.ReLU(),
            )
            for kernel in kernels
        ])  # fmt: skip

    def forward(self, inputs):
        """Return the module's output, or its sum with the input."""
        outputs = self.layers(inputs)
        return inputs + outputs if self.skip else outputs


def load_digits():
    """Return training and held-out data: every fifth sample is held out."""
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(table[:, -1]).long()
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    held_out[::5] = True
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


if __name__ == "__main__":  # as a task of the type `exec`, which workers in any language run
    print(json.dumps(Network(**json.loads(sys.stdin.readline())).run()))
