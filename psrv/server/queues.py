"""Where a home takes totals in: on its cores or on a GPU, whichever will be done first.

Each device has a queue. A merge goes to the one whose wait and own time together are the shortest;
what a merge of a size takes on a device is learned, as a moving average. (The scheduler of IBM Deep
Learning Service's parameter server, section "Parameter Server".)

The rows lie in shared memory, so a GPU is sent a block and its total and sends the block back: that
pays for solvers that compute much for each element, and not for a sum. The path to the GPU follows
torch's documentation and was tried with the CPU in the GPU's place only: no GPU was at hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from psrv.solvers.solver import Solver

CPU = "cpu"
_WEIGHT = 0.2
"""Of the newest time in the moving average."""
T = TypeVar("T")


class Chooser:
    """Chooses a queue for each piece of work, and learns how long pieces take.

    Args:
        names: Of the queues; of those that are as good the first one is chosen.
        clock: Seconds.
    """

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = dict.fromkeys(names, 0.0)
        """When each queue has done all that it was given, as far as is known."""
        self._takes_s: dict[tuple[str, int], float] = {}

    def choose(self, size: int) -> str:
        """Return the queue for work of a size, and count it as given to that.

        A queue that has never done work of this size counts as quick, so each is tried.
        """
        with self._lock:
            now = self._clock()
            ends = {
                name: max(now, free_at) + self._takes_s.get((name, size), 0.0)
                for name, free_at in self._free_at.items()
            }
            name = min(ends, key=lambda each: ends[each])
            self._free_at[name] = ends[name]
            return name

    def done(self, name: str, size: int, took_s: float) -> None:
        """Learn how long work of a size has taken on a queue, without its wait."""
        with self._lock:
            known = self._takes_s.get((name, size))
            mean = took_s if known is None else known + _WEIGHT * (took_s - known)
            self._takes_s[name, size] = mean
            # What it took more or less than was thought, all that waits behind it does, too.
            if name in self._free_at:
                self._free_at[name] += took_s - (known or 0.0)

    def drop(self, name: str) -> None:
        """Choose a queue no more."""
        with self._lock:
            self._free_at.pop(name, None)


class OnDevice(Solver):
    """A solver whose merges are computed on another device.

    Args:
        solver: What to compute.
        device: Where; each of its blocks is sent there and back.
    """

    def __init__(self, solver: Solver, device: torch.device) -> None:
        self._solver = solver
        self._device = device
        self.rows = solver.rows
        self.sends_weights = solver.sends_weights
        self.total_is_step = solver.total_is_step

    def push(
        self,
        server: Sequence[torch.Tensor],
        mine: torch.Tensor,
        scratch: torch.Tensor,
        rate: float,
    ) -> None:
        """Take in what a learner sends: here, in its own process."""
        self._solver.push(server, mine, scratch, rate)

    def merge(
        self, server: Sequence[torch.Tensor], total: torch.Tensor, pushes: int, rate: float
    ) -> None:
        """Take a total in there, and bring the rows back."""
        there = [row.to(self._device, copy=True) for row in server]
        self._solver.merge(there, total.to(self._device, copy=True), pushes, rate)
        for row, new in zip(server, there, strict=True):
            row.copy_(new)


class Queues:
    """The queues of a server: one thread at a time works on each device but the CPU.

    A device that fails, for learners have filled its memory, say, is used no more.

    Args:
        solver: The training's.
        devices: Beside the CPU.
        log: Gets a line for each device that fails.
    """

    def __init__(
        self,
        solver: Solver,
        devices: Sequence[torch.device] = (),
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_cpu = solver
        self._log = log
        self._others = {str(device): OnDevice(solver, device) for device in devices}
        self._locks = {name: threading.Lock() for name in self._others}
        self.chooser = Chooser([CPU, *self._others])
        for name, device in zip(list(self._others), devices, strict=True):
            try:
                torch.zeros(1, device=device)  # its first use takes long: not under a block's lock
            except RuntimeError as error:
                self._drop(name, error)

    def run(self, size: int, work: Callable[[Solver], T]) -> T:
        """Do work of a size (in elements) with a solver that computes where it is done first."""
        if not self._others:
            return work(self._on_cpu)
        name = self.chooser.choose(size)
        if (other := self._others.get(name)) is not None:
            try:
                with self._locks[name]:
                    return self._timed(name, size, work, other)
            except RuntimeError as error:
                self._drop(name, error)
        return self._timed(CPU, size, work, self._on_cpu)  # as many at a time as come

    def _timed(self, name: str, size: int, work: Callable[[Solver], T], solver: Solver) -> T:
        begin = time.monotonic()
        result = work(solver)
        self.chooser.done(name, size, time.monotonic() - begin)
        return result

    def _drop(self, name: str, error: RuntimeError) -> None:
        """Do the rest on the CPU."""
        self.chooser.drop(name)
        if self._others.pop(name, None) is not None:
            first = str(error).partition("\n")[0]
            self._log(f"{name} is used no more: {first}")


def devices_for(nodes: int) -> list[torch.device]:
    """Return the GPUs for the server of a training of so many nodes: all that it sees.

    On one node nothing is merged: a GPU would only lose the memory that CUDA takes for itself.
    """
    return [] if nodes == 1 else visible_gpus()


def visible_gpus() -> list[torch.device]:
    """Return the GPUs that this process may use."""
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
