"""A learner's side of the parameter server: join, push, pull, leave.

On the learners' node the server does no arithmetic: each learner updates the shards in shared
memory itself, one block at a time. Nothing is sent, serialised or copied except into the learner's
own weights. The node's server sends what goes to other nodes: a learner uses no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from psrv.errors import LateError, ServerError
from psrv.push.flow_control import FlowControl
from psrv.push.push import AtOnce, InRounds, Pushes, copying, ranges, replicas
from psrv.push.rounds import refreshes
from psrv.push.staleness import StalenessBound
from psrv.push.waiting import FOR_SERVERS, WaitPolicy, how_long, wait_until
from psrv.shard.format import COUNT, PRIMARY, UNFINISHED, kind_of, read_row
from psrv.shard.private_folder import is_private_folder, removed_error, was_removed
from psrv.shard.shard import Shard
from psrv.solvers.partition import ShardSet
from psrv.solvers.solver import RoundSolver, Solver


class Client:
    """A learner's view of the server, for one thread at a time: POSIX locks belong to the process.

    Flat tensors have the shape (count,) over all shards, in their order.

    Args:
        shards: All of them, joined.
        pushes: How pushes reach them.
        staleness_bound: On the first of them.
        flow_control: For the replicas.
        wait_policy: How long to wait for the servers; it warns if pushes have not reached their
            primary when this learner leaves.
        snapshots: Returns the newest snapshot of a shard, for rows that are not on this node.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        pushes: Pushes,
        staleness_bound: StalenessBound,
        flow_control: FlowControl,
        wait_policy: WaitPolicy,
        snapshots: Callable[[int], Path] | None = None,
    ) -> None:
        self._shards = list(shards)
        self._first = next((shard for shard in shards if shard.layout.blocks), None)
        """The shard with the first block: shards are empty if a small model has too few blocks."""
        self._count = sum(shard.layout.count for shard in shards)
        self._pushes_to = pushes
        self._at_once = isinstance(pushes, AtOnce)
        self._staleness_bound = staleness_bound
        self._flow_control = flow_control
        self._wait_policy = wait_policy
        self._snapshots = snapshots
        self._last_pull = (0, 0)
        """At the last pull: all pushes that the weights had had, and this learner's own."""
        self._see()

    def push(self, mine: torch.Tensor, rate: float) -> None:
        """Push gradients or weights, as the solver expects.

        Args:
            mine: Shape (count,).
            rate: The learning rate of the server's step.

        Raises:
            ServerError: `mine` has another shape or device; nothing was sent.
        """
        self._check(mine)
        self._pushes_to.push(mine, None, rate)
        self._staleness_bound.pushed()

    def pull(self, into: torch.Tensor) -> None:
        """Fetch the weights."""
        self._check(into)
        self._pushes_to.pull(into)
        self._see()

    def push_pull(self, mine: torch.Tensor, into: torch.Tensor, rate: float) -> None:
        """Push, and copy the solver's answer while each block is in the cache."""
        self._check(mine)
        self._check(into)
        self._pushes_to.push(mine, into, rate)
        self._staleness_bound.pushed()
        self._see()

    def wait_for_others(self) -> float:
        """Wait for flow control and the staleness bound; return the seconds that it took.

        Until each living learner has done at least this one's pushes minus `staleness`, and while
        too many pushes of this node have not reached the primaries on other nodes.

        Raises:
            LateError: A halt leaves no more time.
        """
        return self._staleness_bound.wait() + self._flow_control.wait()

    def pushes_by_others(self) -> int:
        """Return how many pushes of others the weights have had since this learner's last pull.

        For the first block, as known on this node; 0 with a solver in rounds.
        """
        pushes, own = self._last_pull
        return max(0, self._pushes() - pushes - (self._staleness_bound.pushes - own))

    def solver_rows(self, into: torch.Tensor) -> None:
        """Copy the solver's rows, for a checkpoint.

        For shards whose primary is another node, copy those in the newest snapshot.

        Args:
            into: Shape (rows of the solver, count).

        Raises:
            ServerError: A snapshot can't be read.
        """
        for number, (shard, part) in enumerate(
            zip(self._shards, ranges(self._shards), strict=True)
        ):
            for row, kept in enumerate(into[:, part]):
                if shard.layout.kind == PRIMARY:
                    parts = torch.split(kept, shard.layout.block_count)
                    shard.read(copying(parts, 1 + row))
                elif self._snapshots is not None:
                    read_row(self._snapshots(number), 1 + row, kept)

    def refresh(self, timeout_s: float) -> None:
        """Bring the replicas on this node up to date with their primaries; then pull.

        Raises:
            ServerError: A primary has not answered in time, or in the time that a halt leaves.
        """
        wait_policy = replace(self._wait_policy, timeout_s=timeout_s)
        if not wait_until(refreshes(replicas(self._shards)), wait_policy):
            raise ServerError(
                f"another node's parameter server has not answered {how_long(wait_policy)}",
                hint="its log says why: see `dlctl logs`",
            )

    def leave(self) -> None:
        """Leave the server, and release the slots.

        Pushes reach their primaries first, unless that takes longer than the time limit, or than a
        halt allows; then a warning says so. In rounds nobody waits for this learner meanwhile.
        """
        try:
            wait_policy = self._wait_policy
            if not wait_until(self._pushes_to.leave(), wait_policy):
                wait_policy.warn(
                    "the last pushes have not come to another node's server "
                    f"{how_long(wait_policy)}: they may be lost; the log of this node's server "
                    "says why"
                )
        finally:
            for shard in self._shards:
                shard.close()

    def _check(self, whole: torch.Tensor) -> None:
        """Refuse a tensor that does not fit, before any block is changed."""
        if (shape := (self._count,)) != tuple(whole.shape) or whole.device.type != "cpu":
            raise ServerError(
                f"a tensor of shape {tuple(whole.shape)} on {whole.device} does not fit the "
                f"parameter server's, of shape {shape} on cpu"
            )

    def _pushes(self) -> int:
        """Return how many pushes the first block has had; in rounds, this learner's own."""
        if not self._at_once or self._first is None:
            return self._staleness_bound.pushes
        pushes, gathered = self._first.progress(0)
        return pushes + (gathered & COUNT)

    def _see(self) -> None:
        self._last_pull = self._pushes(), self._staleness_bound.pushes


def join(
    shards: ShardSet,
    solver: Solver | RoundSolver,
    wait_policy: WaitPolicy,
    *,
    rank: int = 0,
    learners: int = 1,
    staleness: int | None = None,
) -> Client:
    """Map all shards, once the node's server has made them.

    Args:
        shards: Where they are, and what they hold: the same on every learner.
        solver: The same on every learner.
        wait_policy: How long to wait for the server and, with a solver in rounds, for the other
            learners; later, how long to wait without a warning.
        rank: This learner's.
        learners: How many there are.
        staleness: How many pushes this learner may be ahead of the slowest in `wait_for_others`;
            None: any number.

    Raises:
        LateError: A halt leaves no time to wait.
        ServerError: Something is not there in time, or belongs to another model or attempt.
    """
    paths = [shards.path(number) for number in range(shards.count)]
    _wait_for(paths, wait_policy)
    if not is_private_folder(shards.folder):  # every user may make one in shared memory
        raise ServerError(
            f"{shards.folder} is not private to this user: its shards may be anybody's",
            hint="remove it, unless it belongs to a running training",
        )
    joined: list[Shard] = []
    try:
        for number, path in enumerate(paths):
            layout = shards.layout(number, solver, kind_of(path))
            joined.append(Shard(path, layout, shards.attempt))
        pushes: Pushes
        if isinstance(solver, RoundSolver):
            bound = StalenessBound(joined[0], None, wait_policy)
            pushes = InRounds(joined, solver, rank, learners, wait_policy)
            flow_control = FlowControl([], wait_policy)  # in rounds none is needed
        else:
            bound = StalenessBound(joined[0], staleness, wait_policy)
            pushes = AtOnce(joined, solver, rank)
            flow_control = FlowControl(replicas(joined), wait_policy, moves=solver.total_is_step)
        snapshots = None if shards.job_dir is None else shards.snapshot
        return Client(joined, pushes, bound, flow_control, wait_policy, snapshots)
    except BaseException:
        for shard in joined:
            shard.close()
        raise


def _wait_for(paths: Sequence[Path], wait_policy: WaitPolicy) -> None:
    """Wait for the shards; without a limit while one is being made (a large one takes minutes)."""
    has_warned, timeout_s = False, wait_policy.timeout_s
    for path in paths:
        while not wait_until(partial(_is_decided, path), wait_policy):
            if wait_policy.late(FOR_SERVERS):
                raise LateError(f"has waited for {path} {how_long(wait_policy)}")
            if not any(path.parent.glob(UNFINISHED)) and not path.exists():
                raise ServerError(
                    f"no parameter server has made {path} for {timeout_s:g} s",
                    hint="its log says why: see `dlctl logs`",
                )
            if not has_warned:
                has_warned = True
                wait_policy.warn(
                    f"the parameter server has been making {path} for {timeout_s:g} s: waiting"
                )
        if not path.exists():
            raise removed_error(path)


def _is_decided(path: Path) -> bool:
    """Return whether a shard exists, or never will."""
    return path.exists() or was_removed(path.parent)
