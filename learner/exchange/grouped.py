"""The base of every exchange among several learners: its group, and small sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch

from learner.errors import UserFault
from learner.exchange.base import Buffer, Group

G = TypeVar("G", bound=Group)


class GroupedExchange(ABC, Generic[G]):
    """An Exchange with its group's methods; a subclass says how buffers are summed."""

    name = ""

    def __init__(self, group: G) -> None:
        self.group = group
        self.rank, self.size, self.topology = group.rank, group.size, group.topology
        self.gather, self.broadcast = group.gather, group.broadcast
        self.share, self.collect, self.barrier = group.share, group.collect, group.barrier
        self.node_share, self.node_barrier = group.node_share, group.node_barrier
        self.plain_sum, self.abort = group.plain_sum, group.abort
        self._scratch: dict[tuple[torch.dtype, torch.device], Buffer] = {}

    @abstractmethod
    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros."""

    def shared(self, count: int, dtype: torch.dtype) -> torch.Tensor | None:  # noqa: ARG002
        """Return None: no memory is shared."""
        return None

    def sum_in_place(self, values: torch.Tensor) -> None:
        """Sum through a buffer that is kept for the next call."""
        kind = (values.dtype, values.device)
        scratch = self._scratch.get(kind)
        if scratch is None or len(scratch.values) < len(values):
            if scratch is not None:
                scratch.free()
            scratch = self._scratch[kind] = self.buffer(len(values), *kind)
        scratch.values[: len(values)].copy_(values)
        scratch.begin(0, len(values))
        scratch.wait()
        values.copy_(scratch.values[: len(values)])

    def close(self) -> None:
        """Free the memory, wait for the others and leave."""
        for scratch in self._scratch.values():
            scratch.free()
        self._scratch.clear()
        self.group.close()

    def _refuse_gpus(self, device: torch.device | None) -> None:
        if device is not None and device.type != "cpu":
            raise UserFault(
                f"the exchange {self.name} works in the host's memory, and the model is on "
                f"{device}",
                hint="use exchange: torch (NCCL) on GPUs",
            )
