"""A learner's side of the parameter server: join, push, pull, leave.

On the learners' node the server does no arithmetic: each learner works on the shards itself, where
they lie, one block at a time. Nothing is sent, serialised or copied but into its own weights. What
goes to other nodes the node's server sends: a learner uses no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from dlctl.contract import Parameters
from psrv.errors import LateError, ServerError
from psrv.push.flow_control import Backlog
from psrv.push.push import AtOnce, InRounds, Pushes, copying, ranges, relays
from psrv.push.staleness import Gate
from psrv.push.waiting import (
    FOR_SERVERS,
    Late,
    Patience,
    Warn,
    how_long,
    never,
    to_standard_error,
    wait_until,
)
from psrv.shard.format import COUNT, HOME, UNFINISHED, kind_of, read_row
from psrv.shard.private_folder import is_own_folder, removed, was_removed
from psrv.shard.shard import Shard
from psrv.solvers.partition import layout_of
from psrv.solvers.solver import RoundSolver, Solver


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
            if self._future.done():  # a solver's own
                raise
            raise ServerError(
                f"the parameter server has not answered for {timeout_s:g} s"
            ) from None


class Client:
    """What a learner calls. Flat tensors: shape (count,) over all shards, in their order.

    Args:
        shards: all of them, joined.
        pushes: how they are worked on.
        gate: of the first of them.
        backlog: of relays.
        patience: How long the servers are waited for; told when this learner leaves, and pushes
            have not come to their home.
        snapshots: The newest snapshot of each shard, for rows that are not on this node.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        pushes: Pushes,
        gate: Gate,
        backlog: Backlog,
        patience: Patience,
        snapshots: Callable[[int], Path] | None = None,
    ) -> None:
        self._shards = list(shards)
        self._first = next((shard for shard in shards if shard.layout.blocks), None)
        """Where the first block is: shards are empty that a small model has no block for."""
        self._count = sum(shard.layout.count for shard in shards)
        self._pushes_to = pushes
        self._at_once = isinstance(pushes, AtOnce)
        self._gate = gate
        self._backlog = backlog
        self._patience = patience
        self._snapshots = snapshots
        self._seen = (0, 0)
        """At the last pull: all pushes that the weights had had, and this learner's."""
        self._thread = ThreadPoolExecutor(1, "parameter-server")
        """The one that works on the shards: a POSIX lock is the process's, not a thread's."""
        self._pending: list[Handle] = []
        self._see()

    def push(self, mine: torch.Tensor, rate: float, *, wait: bool = False) -> Handle:
        """Send gradients or weights, as the solver wants them. Leave them alone until its end.

        Args:
            mine: Shape (count,).
            rate: The learning rate of this moment, for the server's step.
            wait: Whether to return at its end only: the calling thread does it then, which for
                small models is faster than to have it done and to wait.

        Raises:
            ServerError: `mine` is not such a tensor; nothing has been sent.
        """
        self._check(mine)
        return self._begin(lambda: self._work(mine, None, rate), wait)

    def pull(self, into: torch.Tensor, *, wait: bool = False) -> Handle:
        """Fetch the weights."""
        self._check(into)
        return self._begin(lambda: self._read(into), wait)

    def push_pull(
        self, mine: torch.Tensor, into: torch.Tensor, rate: float, *, wait: bool = False
    ) -> Handle:
        """Send, and take what the solver answers, while each block is in the cache."""
        self._check(mine)
        self._check(into)
        return self._begin(lambda: self._work(mine, into, rate), wait)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all that was begun; see Handle.wait."""
        while self._pending:
            handle = self._pending[0]
            try:
                handle.wait(timeout_s)
            finally:
                if handle.done:
                    self._pending.pop(0)

    def wait_for_others(self) -> float:
        """Wait until the others are not too far behind; return the seconds that it took.

        That is, until each living learner has done as many pushes as this one less `staleness`;
        and while too many pushes of this node have not come to the homes of other nodes.

        Raises:
            LateError: a halt leaves no more time.
        """
        return self._gate.wait() + self._backlog.wait()

    def pushes_by_others(self) -> int:
        """Return how many pushes of others the weights have had since this learner's last pull.

        Of the first block, as it is known on this node; with a solver in rounds none.
        """
        pushes, own = self._seen
        return max(0, self._pushes() - pushes - (self._gate.pushes - own))

    def solver_rows(self, into: torch.Tensor) -> None:
        """Copy what the solver keeps, for a checkpoint.

        Of shards whose home is another node it is what the newest snapshot has.

        Args:
            into: Shape (rows of the solver, count).

        Raises:
            ServerError: a snapshot can't be read.
        """
        self._begin(lambda: self._read_rows(into), wait=True)  # a failure is told once

    def refresh(self, timeout_s: float) -> None:
        """Bring the replicas on this node up to date with their homes; then pull.

        Raises:
            ServerError: a home has not answered in time, or in that which a halt leaves.
        """
        stale, wanted = relays(self._shards), list[int]()
        self._begin(lambda: wanted.extend(shard.want_refresh() for shard in stale)).wait()

        def fresh() -> bool:
            return all(s.refreshed >= n for s, n in zip(stale, wanted, strict=True))

        patience = replace(self._patience, timeout_s=timeout_s)
        if not wait_until(fresh, patience):
            raise ServerError(
                f"another node's parameter server has not answered {how_long(patience)}",
                hint="its log says why: see `dlctl logs`",
            )

    def leave(self) -> None:
        """Finish what was begun, and give the slots back.

        Pushes get to their homes first, if that takes no longer than the time limit, or than a halt
        leaves time; if it does, that is said. In rounds nobody waits for this learner meanwhile.
        """
        try:
            self.wait()
            self._wait_for_homes(self._pushes_to.leave())
        finally:
            self._thread.shutdown()
            for shard in self._shards:
                shard.close()

    def _wait_for_homes(self, have: Callable[[], bool]) -> None:
        patience = self._patience
        if not wait_until(have, patience):
            patience.warn(
                f"the last pushes have not come to another node's server {how_long(patience)}: "
                "they may be lost; the log of this node's server says why"
            )

    def _check(self, whole: torch.Tensor) -> None:
        """Refuse what does not fit before its first block is worked on, not at its last."""
        if (shape := (self._count,)) != tuple(whole.shape) or whole.device.type != "cpu":
            raise ServerError(
                f"a tensor of shape {tuple(whole.shape)} on {whole.device} does not fit the "
                f"parameter server's, of shape {shape} on cpu"
            )

    def _begin(self, work: Callable[[], None], wait: bool = False) -> Handle:
        if wait:
            self.wait()  # one thread at a time works on the shards
            work()
            done: Future[None] = Future()
            done.set_result(None)
            return Handle(done)
        self._pending = [handle for handle in self._pending if not handle.succeeded]
        self._pending.append(Handle(self._thread.submit(work)))
        return self._pending[-1]

    def _work(self, mine: torch.Tensor, into: torch.Tensor | None, rate: float) -> None:
        self._pushes_to.push(mine, into, rate)
        self._gate.pushed()
        if into is not None:
            self._see()

    def _read(self, into: torch.Tensor) -> None:
        self._pushes_to.pull(into)
        self._see()

    def _read_rows(self, into: torch.Tensor) -> None:
        for number, (shard, part) in enumerate(
            zip(self._shards, ranges(self._shards), strict=True)
        ):
            for row, kept in enumerate(into[:, part]):
                if shard.layout.kind == HOME:
                    shard.read(copying(shard, kept, 1 + row))
                elif self._snapshots is not None:
                    read_row(self._snapshots(number), 1 + row, kept)

    def _pushes(self) -> int:
        """Return how many pushes the first block has had; in rounds, this learner's own."""
        if not self._at_once or self._first is None:
            return self._gate.pushes
        pushes, gathered = self._first.progress(0)
        return pushes + (gathered & COUNT)

    def _see(self) -> None:
        self._seen = self._pushes(), self._gate.pushes


def join(
    folder: Path,
    parameters: Parameters,
    shards: int,
    solver: Solver | RoundSolver,
    attempt: int,
    timeout_s: float,
    *,
    rank: int = 0,
    learners: int = 1,
    staleness: int | None = None,
    snapshots: Callable[[int], Path] | None = None,
    warn: Warn = to_standard_error,
    late: Late = never,
) -> Client:
    """Map all shards, once the node's server has made them.

    Args:
        folder: Where this node's are, as `shard-<number>`.
        parameters: What this learner has; all must have the same.
        shards: How many there are.
        solver: The same on every learner.
        attempt: Of the training; a shard of another one is refused.
        timeout_s: How long the server, and for rounds the other learners, are waited for.
        rank: This learner's.
        learners: How many there are.
        staleness: How many pushes this one may be ahead of the slowest, with `wait_for_others`;
            None: any number.
        snapshots: Returns where the newest snapshot of a shard is; see Client.solver_rows.
        warn: Told when this learner waits for others longer than `timeout_s`; it goes on waiting.
        late: Asked while it waits for the server, or, once it has joined, for others: whether a
            halt leaves no more time for that.

    Raises:
        LateError: it leaves none.
        ServerError: something is not there in time; or of another model or attempt.
    """
    paths = [folder / f"shard-{number}" for number in range(shards)]
    _wait_for(paths, Patience(timeout_s, warn, late))
    _check_owner(folder)
    joined: list[Shard] = []
    try:
        for number, path in enumerate(paths):
            layout = layout_of(parameters, shards, number, solver, kind_of(path))
            joined.append(Shard(path, layout, attempt))
        in_rounds = isinstance(solver, RoundSolver)
        patience = Patience(timeout_s, warn, late)
        gate = Gate(joined[0], None if in_rounds else staleness, patience)
        pushes: Pushes = (
            InRounds(joined, solver, rank, learners, patience)
            if isinstance(solver, RoundSolver)
            else AtOnce(joined, solver, rank)
        )
        backlog = _backlog_of(pushes, joined, patience)
        return Client(joined, pushes, gate, backlog, patience, snapshots)
    except BaseException:
        for shard in joined:
            shard.close()
        raise


def _backlog_of(pushes: Pushes, shards: Sequence[Shard], patience: Patience) -> Backlog:
    """Return what bounds the pushes that gather for other nodes; in rounds none do."""
    if not isinstance(pushes, AtOnce):
        return Backlog([], patience)
    return Backlog(relays(shards), patience, moves=pushes.moves_replicas)


def _wait_for(paths: Sequence[Path], patience: Patience) -> None:
    """Wait for the shards; while one is being made (a large one takes minutes) however long."""
    said, timeout_s = False, patience.timeout_s
    for path in paths:
        while not wait_until(partial(_is_decided, path), patience):
            if patience.late(FOR_SERVERS):
                raise LateError(f"has waited for {path} {how_long(patience)}")
            if not any(path.parent.glob(UNFINISHED)) and not path.exists():
                raise ServerError(
                    f"no parameter server has made {path} for {timeout_s:g} s",
                    hint="its log says why: see `dlctl logs`",
                )
            if not said:
                said = True
                patience.warn(
                    f"the parameter server is making {path} for {timeout_s:g} s now: waiting"
                )
        if not path.exists():
            raise removed(path)


def _check_owner(folder: Path) -> None:
    """Refuse what others may have put there: every user may make a folder in shared memory."""
    if not is_own_folder(folder):
        raise ServerError(
            f"{folder} is not this user's alone: its shards may be anybody's",
            hint="remove it, if it is not of a training that runs",
        )


def _is_decided(path: Path) -> bool:
    """Return whether a shard is there, or will never be."""
    return path.exists() or was_removed(path.parent)
