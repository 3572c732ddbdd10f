"""One learner's share in memory: its parts, followed by the tree and a list of the pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from learner.checkpoint.partition import Part, end_of, numpy_name, offsets_of


class Snapshot:
    """The parts to copy, and their places in the snapshot."""

    def __init__(self, parts: Sequence[Part], tree: bytes) -> None:
        """Choose the layout of a share.

        Args:
            parts: what this learner writes.
            tree: the content of state.json on rank 0; empty on other ranks.
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
        """Return the size of the snapshot."""
        return self.pieces_place[1]

    @property
    def is_of_gpu(self) -> bool:
        """Return whether any part is on a GPU."""
        return any(part.values.is_cuda for part in self.parts)

    def copy_to(self, memory: torch.Tensor) -> None:
        """Copy the snapshot to memory: uint8, shape (at least size_bytes,)."""
        for part, place in zip(self.parts, self._offsets, strict=True):
            size_bytes = part.values.numel() * part.values.itemsize
            if size_bytes:
                memory[place : place + size_bytes].view(part.values.dtype).copy_(part.values)
        texts = ((self.tree, self.tree_place), (self._pieces, self.pieces_place))
        for content, (start, end) in texts:
            if content:
                memory[start:end].copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
