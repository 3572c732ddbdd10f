"""A learner's side of the parameter server: join, push, pull, leave.

On the learners' node the server does no arithmetic: each learner works on the shards itself, where
they lie, one block at a time. Nothing is sent, serialised or copied but into its own weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from itertools import accumulate, pairwise
from pathlib import Path

import torch

from psrv.errors import ServerError
from psrv.pushes import AtOnce, InRounds, Pushes
from psrv.rules import RoundSolver, Solver
from psrv.shard import Shard
from psrv.shard_file import ShardLayout

_LOOK_EVERY_S = 0.05


def divide(count: int, shards: int, step: int) -> list[tuple[int, int]]:
    """Return the ranges of elements of so many shards: even, and cut at multiples of `step`."""
    blocks = -(-count // step)
    cuts = [min(count, blocks * n // shards * step) for n in range(shards + 1)]
    return list(pairwise(cuts))


class Handle:
    """Something that a client is doing."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Return whether it has ended, however."""
        return self._future.done()

    @property
    def succeeded(self) -> bool:
        """Return whether it has ended well."""
        return self.done and self._future.exception() is None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for its end.

        Raises:
            ServerError: it takes longer than the time limit; it goes on.
            Exception: what it ended with.
        """
        try:
            self._future.result(timeout_s)
        except NotYet:
            raise ServerError(
                f"the parameter server has not answered for {timeout_s:g} s"
            ) from None


class Client:
    """What a learner calls. Flat tensors: shape (count,) over all shards, in their order.

    Args:
        shards: all of them, joined.
        pushes: how each is worked on.
    """

    def __init__(self, shards: Sequence[Shard], pushes: Sequence[Pushes]) -> None:
        self._shards = list(shards)
        ends = list(accumulate((shard.layout.count for shard in shards), initial=0))
        parts = [slice(start, stop) for start, stop in pairwise(ends)]
        self._parts = list(zip(pushes, parts, strict=True))
        self._thread = ThreadPoolExecutor(1, "parameter-server")
        """The one that works on the shards: a POSIX lock is the process's, not a thread's."""
        self._pending: list[Handle] = []

    def push(self, mine: torch.Tensor, rate: float) -> Handle:
        """Send gradients or weights, as the solver wants them. Leave them alone until its end.

        Args:
            mine: Shape (count,).
            rate: The learning rate of this moment, for the server's step.
        """
        return self._begin(lambda: self._work(mine, None, rate))

    def pull(self, into: torch.Tensor) -> Handle:
        """Fetch the weights."""
        return self._begin(lambda: self._read(into))

    def push_pull(self, mine: torch.Tensor, into: torch.Tensor, rate: float) -> Handle:
        """Send, and take what the solver answers, while each block is in the cache."""
        return self._begin(lambda: self._work(mine, into, rate))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all that was begun; see Handle.wait."""
        while self._pending:
            handle = self._pending[0]
            try:
                handle.wait(timeout_s)
            finally:
                if handle.done:
                    self._pending.pop(0)

    def leave(self) -> None:
        """Finish what was begun, and give the slots back."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            for shard in self._shards:
                shard.close()

    def _begin(self, work: Callable[[], None]) -> Handle:
        self._pending = [handle for handle in self._pending if not handle.succeeded]
        self._pending.append(Handle(self._thread.submit(work)))
        return self._pending[-1]

    def _work(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        for pushes, part in self._parts:
            pushes.push(mine[part], None if into is None else into[part], rate)
        if into is not None:
            for pushes, part in self._parts:
                pushes.answer(into[part])

    def _read(self, into: torch.Tensor) -> None:
        for pushes, part in self._parts:
            pushes.pull(into[part])


def join(
    paths: Sequence[Path],
    layouts: Sequence[ShardLayout],
    solver: Solver | RoundSolver,
    attempt: int,
    timeout_s: float,
    *,
    rank: int = 0,
    learners: int = 1,
) -> Client:
    """Map all shards, once their servers have made them.

    Args:
        paths: Where the shards are.
        layouts: What each holds. With a solver of rounds one row more than it keeps: the sum.
        solver: The same on every learner.
        attempt: Of the training; a shard of another one is refused.
        timeout_s: How long the servers, and for rounds the other learners, are waited for.
        rank: This learner's.
        learners: How many there are.

    Raises:
        ServerError: something is not there in time; or of another model or attempt.
    """
    deadline = time.monotonic() + timeout_s
    for path in paths:
        while not path.exists():
            if time.monotonic() > deadline:
                raise ServerError(
                    f"no parameter server has made {path} for {timeout_s:g} s",
                    hint="its log says why: see `dlctl logs`",
                )
            time.sleep(_LOOK_EVERY_S)
    shards: list[Shard] = []
    try:
        for path, layout in zip(paths, layouts, strict=True):
            shards.append(Shard(path, layout, attempt))
        pushes: list[Pushes] = [
            InRounds(shard, solver, rank, learners, timeout_s)
            if isinstance(solver, RoundSolver)
            else AtOnce(shard, solver)
            for shard in shards
        ]
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    return Client(shards, pushes)
