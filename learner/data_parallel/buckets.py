"""Buckets: where each parameter lies in the flat buffers that are exchanged.

There is one buffer per dtype, in the order in which gradients are computed, cut into buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from learner.exchange.arithmetic import ALIGNMENT

BUCKET_BYTES = 4 * 1024**2
"""A bucket is exchanged as soon as its gradients are complete. Smaller ones overlap more with the
backward pass and stay in the cache; larger ones wait for each other less often."""


@dataclass(frozen=True)
class ParameterPlace:
    """Where one parameter lies in the buffers."""

    index: int
    """Its number among the parameters."""
    flat: int
    """The number of its buffer."""
    start: int
    stop: int
    bucket: int

    def view(self, flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return its part of a buffer, in the parameter's shape and memory order."""
        part = flat[self.start : self.stop]
        if is_dense(like):
            return part.as_strided(like.shape, like.stride(), part.storage_offset())
        return part.view(like.shape)


@dataclass
class Bucket:
    """A range of one buffer that is exchanged as a unit."""

    flat: int
    start: int
    stop: int
    parameters: list[int] = field(default_factory=list)
    """Numbers of the parameters in it."""


@dataclass(frozen=True)
class Flat:
    """One buffer: its size and kind."""

    count: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class BucketLayout:
    """The places of all parameters, and their buckets."""

    flats: list[Flat]
    buckets: list[Bucket]
    """In the order in which they are exchanged."""
    places: dict[int, ParameterPlace]
    """By the parameter's number; sparse parameters have no place."""


def lay_out(
    parameters: Sequence[torch.Tensor], order: Sequence[int], bucket_bytes: int = BUCKET_BYTES
) -> BucketLayout:
    """Return the layout of the parameters numbered in `order`."""
    kinds = list(dict.fromkeys((parameters[i].dtype, parameters[i].device) for i in order))
    ends = [0] * len(kinds)
    open_buckets: dict[int, int] = {}
    buckets: list[Bucket] = []
    places: dict[int, ParameterPlace] = {}
    for index in order:
        parameter = parameters[index]
        flat = kinds.index((parameter.dtype, parameter.device))
        size = parameter.element_size()
        at = open_buckets.get(flat)
        if at is None or (ends[flat] - buckets[at].start) * size >= bucket_bytes:
            at = open_buckets[flat] = len(buckets)
            buckets.append(Bucket(flat, ends[flat], ends[flat]))
        start = ends[flat]
        ends[flat] = start + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        buckets[at].stop = ends[flat]
        buckets[at].parameters.append(index)
        places[index] = ParameterPlace(index, flat, start, start + parameter.numel(), at)
    flats = [Flat(end, *kind) for end, kind in zip(ends, kinds, strict=True)]
    return BucketLayout(flats, buckets, places)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor fills its memory without holes or overlaps, in any order."""
    dims = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, length in dims:
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True
