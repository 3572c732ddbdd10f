"""The exchange over torch.distributed: NCCL between GPUs, gloo otherwise; in its own order."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from learner.exchange.arithmetic import divide, wide_dtype
from learner.exchange.base import Buffer, Group
from learner.exchange.grouped import GroupedExchange
from learner.exchange.torch_group import TIMEOUT, end, started_here


class TorchBuffer:
    """A Buffer whose parts are all-reduced while the program continues."""

    def __init__(self, values: torch.Tensor, group: Any) -> None:
        self.values = values
        self._group = group
        self._works: list[tuple[Any, torch.Tensor, torch.Tensor, int]] = []
        """(work, the part, the tensor that travels, divisor)."""

    def begin(self, start: int, stop: int, divisor: int = 1) -> None:
        """Begin to sum a part."""
        if start == stop:
            return
        part = self.values[start:stop]
        # The libraries would add halves as halves: their sum overflows before it is divided.
        travels = part.to(wide_dtype(part.dtype))
        work = dist.all_reduce(travels, group=self._group, async_op=True)
        self._works.append((work, part, travels, divisor))

    def progress(self) -> None:
        """Do nothing: the library has threads or streams of its own."""

    def wait(self) -> None:
        """Wait for every part, and divide."""
        for work, part, travels, divisor in self._works:
            work.wait()
            divide(travels, divisor)
            if travels is not part:
                part.copy_(travels)
        self._works.clear()

    def free(self) -> None:
        """Drop the memory."""
        self.values = self.values[:0]


class TorchExchange(GroupedExchange[Group]):
    """An Exchange over torch.distributed."""

    name = "torch"

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        # a default group of the user's own may support GPUs only
        self._host = None if started_here() else dist.new_group(backend="gloo", timeout=TIMEOUT)

    def close(self) -> None:
        """Wait for the others and leave."""
        if started_here():
            self.barrier()
            end()
        super().close()

    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros on a device."""
        values = torch.zeros(count, dtype=dtype, device=device)
        return TorchBuffer(values, self._host if values.device.type == "cpu" else None)
