"""Local SGD: weights are averaged every N steps, instead of gradients at each step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from learner.exchange.base import Buffer, Exchange

Optimized = Mapping[torch.Tensor, Mapping[str, Any]]


class WeightAverage:
    """Averages weights: learners step alone, and every `every` steps the weights become their mean.

    The optimizer's state is averaged with them, so all learners are the same afterwards.
    """

    def __init__(self, exchange: Exchange, every: int) -> None:
        self._exchange = exchange
        self._every = every
        self._steps = 0
        self._buffers: dict[tuple[torch.dtype, torch.device], Buffer] = {}
        self.exchange_s = 0.0
        """Seconds spent on averaging since the caller last set it to 0."""

    @property
    def settled(self) -> bool:
        """Return whether no step was taken since the last averaging."""
        return self._steps == 0

    def after_step(self, parameters: Sequence[torch.Tensor], state: Optimized) -> None:
        """Count a step; average if that is due."""
        self._steps += 1
        if self._steps == self._every:
            self.average(parameters, state)

    def average(self, parameters: Sequence[torch.Tensor], state: Optimized) -> None:
        """Replace parameters and state by their means over the learners."""
        started = time.perf_counter()
        self._steps = 0
        tensors = [*parameters, *self._state_of_all(parameters, state)]
        for dtype, device in dict.fromkeys((t.dtype, t.device) for t in tensors):
            self._average_kind([t for t in tensors if (t.dtype, t.device) == (dtype, device)])
        self.exchange_s += time.perf_counter() - started

    def _state_of_all(
        self, parameters: Sequence[torch.Tensor], state: Optimized
    ) -> Iterator[torch.Tensor]:
        """Yield the state's tensors that every learner has, in the same order everywhere."""
        mine = {
            (index, key): tuple(value.shape)
            for index, parameter in enumerate(parameters)
            for key, value in state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        everyone = self._exchange.collect(mine)
        for place, shape in everyone[0].items():
            if all(other.get(place) == shape for other in everyone):
                yield state[parameters[place[0]]][place[1]]

    def _average_kind(self, tensors: Sequence[torch.Tensor]) -> None:
        counts = [tensor.numel() for tensor in tensors]
        buffer = self._buffer(sum(counts), tensors[0])
        with torch.no_grad():
            parts = torch.split(buffer.values[: sum(counts)], counts)
            for part, tensor in zip(parts, tensors, strict=True):
                part.view(tensor.shape).copy_(tensor)
            buffer.begin(0, sum(counts), self._exchange.size)
            buffer.wait()
            for part, tensor in zip(parts, tensors, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def _buffer(self, count: int, like: torch.Tensor) -> Buffer:
        kind = (like.dtype, like.device)
        buffer = self._buffers.get(kind)
        if buffer is None or len(buffer.values) < count:
            if buffer is not None:
                buffer.free()
            buffer = self._buffers[kind] = self._exchange.buffer(count, *kind)
        return buffer

    def free(self) -> None:
        """Free the memory."""
        for buffer in self._buffers.values():
            buffer.free()
        self._buffers.clear()
