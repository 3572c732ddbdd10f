"""The group and the exchange of torch.distributed: started by torchrun, or with its variables set.

Small messages go over gloo, in a private process group; NCCL only knows GPU memory. Sums go over
NCCL between GPUs and over gloo otherwise, in their own order.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from dlctl.contract.ground.processes import boot_id
from learner.errors import UserFault
from learner.exchange.arithmetic import divide, wide_dtype
from learner.exchange.base import Buffer, Group, GroupedExchange
from learner.exchange.topology import make_topology

TIMEOUT = timedelta(days=14)
"""A learner may wait for another's long validation; its launcher ends it if that one dies."""
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TorchGroup:
    """A Group over torch.distributed."""

    def __init__(self) -> None:
        if not dist.is_initialized():
            _start()
        self._talk = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self.topology = make_topology(self.rank, self.collect(_host_identity()))
        nodes = [self.topology.ranks_on(node) for node in range(self.topology.nodes)]
        groups = [dist.new_group(ranks, backend="gloo", timeout=TIMEOUT) for ranks in nodes]
        self._node = groups[self.topology.node]
        self._leader = nodes[self.topology.node][0]

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return every learner's values, one row a learner."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(rows, mine, group=self._talk)
        array: NDArray[np.float64] = torch.stack(rows).numpy()
        return array

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors by those of rank 0, byte for byte."""
        for tensor in tensors:
            host = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            if len(host):
                dist.broadcast(host, 0, group=self._talk)
            if self.rank != 0:
                with torch.no_grad():
                    tensor.copy_(host.view(tensor.dtype).view(tensor.shape))

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""
        box = [value]
        dist.broadcast_object_list(box, 0, group=self._talk)
        return box[0]

    def collect(self, value: Any) -> list[Any]:
        """Return every learner's value."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._talk)
        return values

    def barrier(self) -> None:
        """Wait for every learner."""
        dist.barrier(group=self._talk)

    def node_share(self, value: Any) -> Any:
        """Return the value of this node's first learner."""
        box = [value]
        dist.broadcast_object_list(box, self._leader, group=self._node)
        return box[0]

    def node_barrier(self) -> None:
        """Wait for every learner of this node."""
        dist.barrier(group=self._node)

    def plain_sum(self, values: torch.Tensor, divisor: int) -> None:
        """Sum by one all_reduce."""
        host = values.to("cpu", wide_dtype(values.dtype))
        dist.all_reduce(host, group=self._talk)
        divide(host, divisor)
        if host.data_ptr() != values.data_ptr():
            values.copy_(host)

    def abort(self, code: int) -> None:
        """End this process at once: its launcher ends the others."""
        os._exit(code)

    def close(self) -> None:
        """Wait for the others; end torch.distributed if we began it."""
        if dist.is_initialized():
            self.barrier()
            end()


def start(rank: int, size: int, share: Callable[[Any], Any]) -> None:
    """Start torch.distributed, unless it runs.

    Learners that MPI has started meet at rank 0's host: `share` distributes rank 0's value.
    """
    if dist.is_initialized():
        return
    if any(name not in os.environ for name in NEEDED):
        with socket.socket() as probe:
            probe.bind(("", 0))
            host, port = share((socket.gethostname(), probe.getsockname()[1]))
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR=host, MASTER_PORT=str(port)
        )
    _start()


@dataclass
class _ProcessGroups:
    """The process groups that this module has started, one after the other."""

    store: Store | None = None
    """The store where learners find each other; kept, because a second server could not have its
    port."""
    starts: int = 0
    running: bool = False


_groups = _ProcessGroups()


def started_here() -> bool:
    """Return whether torch.distributed runs because this module has started it."""
    return _groups.running and dist.is_initialized()


def end() -> None:
    """End torch.distributed, if this module has started it."""
    if started_here():
        dist.destroy_process_group()
    _groups.running = False


def _start() -> None:
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise UserFault(
            f"torch.distributed needs the variables {', '.join(missing)}",
            hint="start with torchrun, srun or mpirun",
        )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if _groups.store is None:
        _groups.store = next(rendezvous("env://", timeout=TIMEOUT))[0]
    _groups.starts += 1  # an earlier group's addresses are still in the store
    dist.init_process_group(
        backend,
        store=PrefixStore(f"ddl-{_groups.starts}", _groups.store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=TIMEOUT,
    )
    _groups.running = True


def _host_identity() -> tuple[str, str, int]:
    """Return values that only processes with common shared memory have in common."""
    device = 0
    with contextlib.suppress(OSError):
        device = Path("/dev/shm").stat().st_dev  # noqa: S108
    return socket.gethostname(), boot_id(), device


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
