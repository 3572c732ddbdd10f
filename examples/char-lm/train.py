"""A character language model: a small GRU learns to continue a text."""

import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

TEXT = Path(__file__).with_name("data") / "apache-2.0.txt"


def build(arguments):
    """Return what dlctl's training loop needs."""
    text = TEXT.read_text()
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(letter) for letter in text])
    cut = len(codes) * 9 // 10
    length = arguments.get("length", 64)
    model = CharacterModel(len(letters), arguments.get("hidden", 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.get("lr", 0.005))
    return {
        "model": model,
        "optimizer": optimizer,
        "loss": cross_entropy,
        "train": Windows(codes[:cut], length, stride=4),
        "validation": Windows(codes[cut:], length, stride=length),
        "metrics": {"bits_per_character": lambda o, t: cross_entropy(o, t) / math.log(2)},
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3),
    }


class CharacterModel(nn.Module):
    def __init__(self, letters, hidden):
        super().__init__()
        self.embedding = nn.Embedding(letters, 32)
        self.gru = nn.GRU(32, hidden, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(hidden, letters)

    def forward(self, codes):
        states, _ = self.gru(self.embedding(codes))
        return self.output(self.dropout(states))


class Windows(Dataset):
    """Pieces of the text; the target is the same piece, one letter on."""

    def __init__(self, codes, length, stride):
        self.codes, self.length, self.stride = codes, length, stride

    def __len__(self):
        return (len(self.codes) - self.length - 1) // self.stride + 1

    def __getitem__(self, index):
        start = index * self.stride
        piece = self.codes[start : start + self.length + 1]
        return piece[:-1], piece[1:]


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
