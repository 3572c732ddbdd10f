"""N tensors, summed over all learners in one shot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from learner.exchange.base import Buffer, Exchange
from learner.exchange.layout import Layout, lay_out
from learner.faults import UserFault


class TensorSet(tuple[torch.Tensor, ...]):
    """Tensors that live in an exchange's memory: `allreduce_n_` sums them where they are."""

    buffers: list[Buffer]
    layout: Layout


def empty_set(exchange: Exchange, like: Sequence[torch.Tensor]) -> TensorSet:
    """Return zeros in the exchange's memory, shaped as the given tensors."""
    layout = lay_out(like, range(len(like)))
    buffers = [exchange.buffer(flat.count, flat.dtype, flat.device) for flat in layout.flats]
    tensors = TensorSet(
        layout.places[i].view(buffers[layout.places[i].flat].values, tensor)
        for i, tensor in enumerate(like)
    )
    tensors.buffers, tensors.layout = buffers, layout
    return tensors


def reduce_set(tensors: TensorSet, divisor: int) -> None:
    """Sum a set in place, and divide."""
    for bucket in tensors.layout.buckets:
        tensors.buffers[bucket.flat].begin(bucket.start, bucket.stop, divisor)
    for buffer in tensors.buffers:
        buffer.wait()


class Reducer:
    """Sums tensors of the caller's own memory, through buffers that are kept for the next time."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._kept: dict[tuple[tuple[torch.Size, torch.dtype, torch.device], ...], TensorSet] = {}

    def reduce(
        self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], divisor: int
    ) -> None:
        """Write the sum of each tensor over the learners, divided, into its result."""
        if not tensors:
            return
        held = self._set_like(tensors)
        buckets = held.layout.buckets
        with torch.no_grad():
            for bucket in buckets:
                for index in bucket.parameters:
                    held[index].copy_(tensors[index])
                held.buffers[bucket.flat].begin(bucket.start, bucket.stop, divisor)
                held.buffers[bucket.flat].progress()
            for buffer in held.buffers:
                buffer.wait()
            for index, result in enumerate(results):
                result.copy_(held[index])

    def _set_like(self, tensors: Sequence[torch.Tensor]) -> TensorSet:
        key = tuple((t.shape, t.dtype, t.device) for t in tensors)
        held = self._kept.get(key)
        if held is None:
            self.free()  # one set is kept: the usual caller always has the same tensors
            held = self._kept[key] = empty_set(self._exchange, [_blank(t) for t in tensors])
        return held

    def free(self) -> None:
        """Give the memory back."""
        for held in self._kept.values():
            for buffer in held.buffers:
                buffer.free()
        self._kept.clear()


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of the same shape and kind; its memory is never touched."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def check_against(
    results: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    tolerance: float,
) -> None:
    """Compare with another way to sum.

    The error of a tensor is its largest difference, relative to its largest expected magnitude.

    Raises:
        UserFault: a tensor's error is over the tolerance (0 to 1); names the worst one.
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

    The same infinity, and NaN in both, is no difference; NaN in one alone gives NaN.
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
    """Yield copies of the tensors, to each of which, flat, `apply` was applied in place."""
    for tensor in tensors:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        apply(copy.view(-1))
        yield copy
