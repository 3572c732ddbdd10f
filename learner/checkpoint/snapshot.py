"""One learner's share in memory: its parts, and behind them the tree and a list of the pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from learner.checkpoint.partition import Part, end_of, numpy_name, offsets_of


class Snapshot:
    """What is to be copied, and where to."""

    def __init__(self, parts: Sequence[Part], tree: bytes) -> None:
        """Lay a share out.

        Args:
            parts: What this learner writes.
            tree: The content of state.json (rank 0's; empty elsewhere).
        """
        self.parts = parts
        self.tree = tree
        self._offsets = offsets_of(parts)
        pieces = [
            [part.name, numpy_name(part.values), part.values.numel(), place]
            for part, place in zip(parts, self._offsets, strict=True)
        ]
        self._pieces = json.dumps(pieces).encode()
        end = end_of(self._offsets, parts)
        self.tree_place = (end, end + len(tree))
        self.pieces_place = (end + len(tree), end + len(tree) + len(self._pieces))

    @property
    def size_bytes(self) -> int:
        """Return how much memory it takes."""
        return self.pieces_place[1]

    @property
    def is_of_gpu(self) -> bool:
        """Return whether a GPU copies a part of it."""
        return any(part.values.is_cuda for part in self.parts)

    def copy_to(self, memory: torch.Tensor) -> None:
        """Copy it to memory: uint8, shape (at least size_bytes,)."""
        for part, place in zip(self.parts, self._offsets, strict=True):
            size_bytes = part.values.numel() * part.values.itemsize
            if size_bytes:
                memory[place : place + size_bytes].view(part.values.dtype).copy_(part.values)
        texts = ((self.tree, self.tree_place), (self._pieces, self.pieces_place))
        for content, (start, end) in texts:
            if content:
                memory[start:end].copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
