"""Which learner writes which elements, and one learner's share of them in memory.

Bytes that all learners hold are divided evenly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from learner.checkpoint.state_tree import Leaf, Packed
from learner.checkpoint_files.share_format import LARGE_BYTES, PAGE_BYTES

SMALL_BYTES = 64 * 1024
"""One learner writes a tensor that is smaller than this, whole."""
_EDGE_ELEMENTS = 4096
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Part:
    """One dataset of a share that is yet to be written."""

    name: str
    values: torch.Tensor
    """Shape (n,), with a dtype that HDF5 knows, on any device."""


def parts_of(packed: Packed, rank: int, learners: int) -> list[Part]:
    """Return the parts that one learner writes of a state that all learners packed."""
    whole = [leaf for leaf in packed.leaves if leaf.is_full]
    total = sum(_size_bytes(leaf) for leaf in whole)
    first, last = (total * n // learners for n in (rank, rank + 1))
    parts: list[Part] = []
    before = 0
    for number, leaf in enumerate(packed.leaves):
        if not leaf.is_full:
            parts += [Part(f"{number}:{start}", values) for start, values in leaf.parts]
            continue
        start, end = _edge(leaf, first - before), _edge(leaf, last - before)
        before += _size_bytes(leaf)
        if start < end or (rank == 0 and _size_bytes(leaf) == 0):
            values = leaf.parts[0][1]
            ratio = leaf.item_bytes // values.itemsize  # stored elements of one element
            parts.append(Part(f"{number}:{start}", values[start * ratio : end * ratio]))
    return parts


def rank_parts(packed: Packed) -> list[Part]:
    """Return the parts that one learner writes of its own state: the JSON and the tensors."""
    text = torch.frombuffer(bytearray(packed.to_bytes()), dtype=torch.uint8)
    own = [Part(f"rank:{n}", leaf.parts[0][1]) for n, leaf in enumerate(packed.leaves)]
    return [Part("rank", text), *own]


def _size_bytes(leaf: Leaf) -> int:
    return leaf.parts[0][1].nbytes


def _edge(leaf: Leaf, place: int) -> int:
    """Return the first element after a boundary at `place`, in bytes from the leaf's start."""
    size_bytes = _size_bytes(leaf)
    if place <= 0 or size_bytes == 0:
        return 0
    if place >= size_bytes or size_bytes < SMALL_BYTES:  # small: the learner with its start has it
        return size_bytes // leaf.item_bytes
    return place // (_EDGE_ELEMENTS * leaf.item_bytes) * _EDGE_ELEMENTS


def shapes(packed: Sequence[Leaf]) -> list[tuple[str, str, tuple[int, ...], bool]]:
    """Return the properties of each leaf on which all learners must agree."""
    return [(leaf.name, leaf.dtype, leaf.shape, leaf.is_full) for leaf in packed]


def _offsets_of(parts: Sequence[Part]) -> tuple[list[int], int]:
    """Return the offset of each part in a snapshot, and the end; large ones begin on a page."""
    offsets, end = [], 0
    for part in parts:
        step = PAGE_BYTES if part.values.nbytes >= LARGE_BYTES else _ALIGNMENT_BYTES
        end = -(-end // step) * step
        offsets.append(end)
        end += part.values.nbytes
    return offsets, end


def _numpy_name(values: torch.Tensor) -> str:
    return str(values.new_empty(0, device="cpu").numpy().dtype.str)


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
        self._offsets, end = _offsets_of(parts)
        pieces = [
            [part.name, _numpy_name(part.values), part.values.numel(), place]
            for part, place in zip(parts, self._offsets, strict=True)
        ]
        self._pieces = json.dumps(pieces).encode()
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
            if size_bytes := part.values.nbytes:
                memory[place : place + size_bytes].view(part.values.dtype).copy_(part.values)
        texts = ((self.tree, self.tree_place), (self._pieces, self.pieces_place))
        for content, (start, end) in texts:
            if content:
                memory[start:end].copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
