"""AllReduceN: N tensors, summed over all learners in one operation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from learner.data_parallel.buckets import BucketLayout, lay_out
from learner.data_parallel.consistency import check_same_lines
from learner.errors import UserFault
from learner.exchange.base import Buffer, Exchange

_HELD: MutableMapping[torch.Tensor, tuple[Held, int]] = WeakTensorKeyDictionary()
"""For each tensor in an exchange's memory, its set and its number in it. (An attribute of the
tensor would be pickled with it.)"""


@dataclass(frozen=True)
class Held:
    """A set of tensors in an exchange's memory."""

    buffers: list[Buffer]
    layout: BucketLayout

    def reduce(self, divisor: int) -> None:
        """Sum the tensors in place, and divide."""
        for bucket in self.layout.buckets:
            self.buffers[bucket.flat].begin(bucket.start, bucket.stop, divisor)
        for buffer in self.buffers:
            buffer.wait()


def empty_set(exchange: Exchange, like: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Held]:
    """Return zeros in the exchange's memory, with the shapes of the given tensors."""
    layout = lay_out(like, range(len(like)))
    buffers = [exchange.buffer(flat.count, flat.dtype, flat.device) for flat in layout.flats]
    held = Held(buffers, layout)
    tensors = []
    for i, tensor in enumerate(like):
        place = layout.places[i]
        tensors.append(place.view(buffers[place.flat].values, tensor))
        _HELD[tensors[i]] = (held, i)
    return tensors, held


def held_set(tensors: Sequence[torch.Tensor]) -> Held | None:
    """Return the set of these tensors; None unless they are all of one set, in its order."""
    found = _HELD.get(tensors[0]) if tensors else None
    if found is None or len(found[0].layout.places) != len(tensors):
        return None
    same = all(_HELD.get(tensor) == (found[0], i) for i, tensor in enumerate(tensors))
    return found[0] if same else None


_SETS_KEPT = 4
"""A loop may sum its gradients, a loss and a metric or two. The memory is as large as all sets."""
_DIGESTS_KEPT = 64
Kind = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]


class Reducer:
    """Sums tensors in the caller's memory, through buffers that are kept for the next call."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._kept: dict[Kind, tuple[list[torch.Tensor], Held]] = {}
        """The most recently used; equal on every learner, since all give the same tensors."""
        self._digests: dict[tuple[object, ...], torch.Tensor] = {}

    def reduce(
        self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], divisor: int
    ) -> None:
        """Write the sum of each tensor over the learners, divided, into its result."""
        if not tensors:
            return
        copies, held = self._set_like(tensors)
        with torch.no_grad():
            for bucket in held.layout.buckets:
                for index in bucket.parameters:
                    copies[index].copy_(tensors[index])
                held.buffers[bucket.flat].begin(bucket.start, bucket.stop, divisor)
                held.buffers[bucket.flat].progress()
            for buffer in held.buffers:
                buffer.wait()
            for result, copy in zip(results, copies, strict=True):
                result.copy_(copy)

    def agree(self, tensors: Sequence[torch.Tensor], names: Sequence[str], how: str) -> None:
        """Check that all learners give the same tensors for the same operation.

        Every call compares: a learner that keeps a set for its tensors can't know that another does
        not. All n numbers d are equal if they sum to n d, and their squares to n d d.

        Raises:
            UserFault: On every learner, if any of them differs; names the first difference.
        """
        if self._exchange.size == 1:
            return
        key = (how, *names, *_kind(tensors))
        known = self._digests.get(key)
        if known is None:
            if len(self._digests) >= _DIGESTS_KEPT:
                self._digests.clear()
            known = self._digests[key] = _digest(_lines(tensors, names, how))
        sums = known.clone()
        self._exchange.sum_in_place(sums)
        if not torch.equal(sums, known * self._exchange.size):
            check_same_lines(
                _lines(tensors, names, how),
                self._exchange,
                what="the learners' tensors for allreduce_n differ",
                hint="call it on every learner with as many tensors, of the same shapes and dtypes",
            )

    def _set_like(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Held]:
        key = _kind(tensors)
        held = self._kept.pop(key, None)
        if held is None:
            if len(self._kept) >= _SETS_KEPT:
                self._free(next(iter(self._kept)))  # least recently used
            held = empty_set(self._exchange, [_blank(t) for t in tensors])
        self._kept[key] = held
        return held

    def free(self) -> None:
        """Free the memory."""
        for key in list(self._kept):
            self._free(key)

    def _free(self, key: Kind) -> None:
        for buffer in self._kept.pop(key)[1].buffers:
            buffer.free()


def _kind(tensors: Sequence[torch.Tensor]) -> Kind:
    return tuple((t.shape, t.dtype, t.device) for t in tensors)


def _lines(tensors: Sequence[torch.Tensor], names: Sequence[str], how: str) -> list[str]:
    """Return the lines that must be the same on every learner."""
    kinds = [f"{tuple(t.shape)} {str(t.dtype)[6:]} {t.device.type}" for t in tensors]
    return [how, *[f"{name} {kind}" for name, kind in zip(names, kinds, strict=True)]]


def _digest(lines: Sequence[str]) -> torch.Tensor:
    """Return two numbers of 24 bits and their squares, as int64: 32,768 learners can sum them."""
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    numbers = [int.from_bytes(digest[:3], "big"), int.from_bytes(digest[3:6], "big")]
    return torch.tensor([*numbers, *(number * number for number in numbers)])


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of the same shape and kind; its memory is never touched."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def check_against(
    results: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    tolerance: float,
) -> None:
    """Compare results with those of another way to sum.

    The error of a tensor is its largest difference, relative to its largest expected magnitude.

    Raises:
        UserFault: A tensor's error is over the tolerance (0 to 1); names the worst one.
    """
    worst, name = -1.0, ""
    for result, other, text in zip(results, expected, names, strict=True):
        error = relative_error(result, other)
        if not error <= worst:  # NaN is the worst of all
            worst, name = error, text
            if math.isnan(error):
                break
    if not worst <= tolerance:
        raise UserFault(
            f"allreduce_n differs from MPI_Allreduce: the tensor {name} by {worst:.3g} of its "
            f"largest value, and {tolerance:g} is allowed",
            hint="halves and large cancelling sums need a larger check",
        )


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest expected finite magnitude.

    The same infinity, and NaN in both, count as equal; NaN in one alone gives NaN.
    """
    kind = torch.complex128 if expected.is_complex() else torch.float64
    a, b = result.to(kind), expected.to(kind)
    alike = (a == b) | (a.isnan() & b.isnan())
    if alike.all():
        return 0.0
    magnitudes = b[b.isfinite()].abs()
    difference = float((a - b)[~alike].abs().max())
    scale = float(magnitudes.max()) if len(magnitudes) else 0.0
    return difference / scale if scale > 0 else difference


def flattened(
    tensors: Sequence[torch.Tensor], apply: Callable[[torch.Tensor], None]
) -> Iterator[torch.Tensor]:
    """Yield copies of the tensors, after applying a function to each as a flat tensor in place."""
    for tensor in tensors:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        apply(copy.view(-1))
        yield copy
