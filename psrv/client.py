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
from psrv.rules import Solver
from psrv.shard import Operation, Shard
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
        solver: the same on every learner.
    """

    def __init__(self, shards: Sequence[Shard], solver: Solver) -> None:
        self._shards = list(shards)
        self._solver = solver
        ends = list(accumulate((shard.layout.count for shard in shards), initial=0))
        self._ranges = list(pairwise(ends))
        self._thread = ThreadPoolExecutor(1, "parameter-server")
        """The one that works on the shards: a POSIX lock is the process's, not a thread's."""
        self._pending: list[Handle] = []

    def push(self, mine: torch.Tensor) -> Handle:
        """Send gradients or weights, as the solver wants them. Leave them alone until its end."""
        return self._begin(lambda: self._work(mine, None))

    def pull(self, into: torch.Tensor) -> Handle:
        """Fetch the weights."""
        return self._begin(lambda: self._read(into))

    def push_pull(self, mine: torch.Tensor, into: torch.Tensor) -> Handle:
        """Send, and take what the solver answers, while each block is in the cache."""
        return self._begin(lambda: self._work(mine, into))

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

    def _work(self, mine: torch.Tensor, into: torch.Tensor | None) -> None:
        for shard, (start, stop) in zip(self._shards, self._ranges, strict=True):
            answer = None if into is None else into[start:stop]
            shard.update(self._pushing(shard, mine[start:stop], answer), _first(shard))

    def _pushing(self, shard: Shard, mine: torch.Tensor, into: torch.Tensor | None) -> Operation:
        solver, step = self._solver, shard.layout.block_count
        sent = torch.split(mine, step)
        taken = None if into is None else torch.split(into, step)
        scratch = torch.empty(step, dtype=mine.dtype)

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            solver.push(parts, sent[block], scratch[: len(sent[block])])
            if taken is not None:
                solver.answer(parts, taken[block])

        return work

    def _read(self, into: torch.Tensor) -> None:
        for shard, (start, stop) in zip(self._shards, self._ranges, strict=True):
            shard.read(_copying(shard, into[start:stop]), _first(shard))


def _copying(shard: Shard, into: torch.Tensor) -> Operation:
    taken = torch.split(into, shard.layout.block_count)

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        taken[block].copy_(parts[0])

    return copy


def _first(shard: Shard) -> int:
    """Return where a learner begins, far from where the others do."""
    return shard.slot * _GOLDEN % 997 * shard.layout.blocks // 997


_GOLDEN = 616
"""997 times the golden ratio: multiples of it lie evenly in the whole, however many there are."""


def join(
    paths: Sequence[Path],
    layouts: Sequence[ShardLayout],
    solver: Solver,
    attempt: int,
    timeout_s: float,
) -> Client:
    """Map all shards, once their servers have made them.

    Raises:
        ServerError: they are not there in time; or of another model or attempt.
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
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    return Client(shards, solver)
