"""Which device merges totals at a primary: the CPU cores or a GPU, whichever is done first.

Each device has a queue. A merge goes to the queue with the shortest sum of wait and own time; how
long a merge of a size takes on a device is learned as a moving average. (The scheduler of IBM Deep
Learning Service's parameter server, section "Parameter Server".)

The rows lie in shared memory, so a GPU receives a block and its total and sends the block back.
That pays for solvers that compute much for each element, and not for a sum. The path to the GPU
follows torch's documentation and was tested only with the CPU in the GPU's place: no GPU was at
hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from psrv.solvers.solver import Parts, Solver

CPU = "cpu"
_WEIGHT = 0.2
"""The newest time's weight in the moving average."""
T = TypeVar("T")


class Chooser:
    """Chooses a queue for each piece of work, and learns how long pieces take.

    Args:
        names: The queues'; the first one wins a tie.
        clock: Returns seconds.
    """

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = dict.fromkeys(names, 0.0)
        """When each queue will be empty, as far as is known."""
        self._takes_s: dict[tuple[str, int], float] = {}

    def choose(self, size: int) -> str:
        """Return the queue for work of a size, and add the work to that queue's load.

        A queue that has never done work of this size counts as fast, so each one is tried.
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
            # Everything that waits behind it shifts by the estimation error.
            if name in self._free_at:
                self._free_at[name] += took_s - (known or 0.0)

    def drop(self, name: str) -> None:
        """Never choose this queue again."""
        with self._lock:
            self._free_at.pop(name, None)


class OnDevice(Solver):
    """A solver that merges on another device.

    Args:
        solver: What to compute.
        device: Where; each block is sent there and back.
    """

    def __init__(self, solver: Solver, device: torch.device) -> None:
        self._solver = solver
        self._device = device
        self.rows = solver.rows
        self.sends_weights = solver.sends_weights
        self.total_is_step = solver.total_is_step

    def push(self, server: Parts, mine: Tensor, scratch: Tensor, rate: float) -> None:
        """Apply what a learner sends, on the CPU, in the learner's own process."""
        self._solver.push(server, mine, scratch, rate)

    def merge(self, server: Parts, total: Tensor, pushes: int, rate: float) -> None:
        """Merge a total on the device, and copy the rows back."""
        there = [row.to(self._device, copy=True) for row in server]
        self._solver.merge(there, total.to(self._device, copy=True), pushes, rate)
        for row, new in zip(server, there, strict=True):
            row.copy_(new)


class Queues:
    """The queues of a server: one thread at a time works on each device other than the CPU.

    A device that fails, because learners have filled its memory, say, is not used again.

    Args:
        solver: The training's.
        devices: The ones beside the CPU.
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
                torch.zeros(1, device=device)  # its first use is slow: not while a block is locked
            except RuntimeError as error:
                self._drop(name, error)

    def run(self, size: int, work: Callable[[Solver], T]) -> T:
        """Run work of a size (in elements) with the solver of the device that will finish first."""
        if not self._others:
            return work(self._on_cpu)
        name = self.chooser.choose(size)
        if (other := self._others.get(name)) is not None:
            try:
                with self._locks[name]:
                    return self._timed(name, size, work, other)
            except RuntimeError as error:
                self._drop(name, error)
        return self._timed(CPU, size, work, self._on_cpu)  # the CPU takes any number at a time

    def _timed(self, name: str, size: int, work: Callable[[Solver], T], solver: Solver) -> T:
        begin = time.monotonic()
        result = work(solver)
        self.chooser.done(name, size, time.monotonic() - begin)
        return result

    def _drop(self, name: str, error: RuntimeError) -> None:
        """Stop using a device."""
        self.chooser.drop(name)
        if self._others.pop(name, None) is not None:
            first = str(error).partition("\n")[0]
            self._log(f"{name} is no longer used: {first}")


def devices_for(nodes: int) -> list[torch.device]:
    """Return the GPUs that the server uses: all that it sees, if there are several nodes.

    On one node nothing is merged: a GPU would only lose the memory that CUDA takes for itself.
    """
    return [] if nodes == 1 else visible_gpus()


def visible_gpus() -> list[torch.device]:
    """Return the GPUs that this process may use."""
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
