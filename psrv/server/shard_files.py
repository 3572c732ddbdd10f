"""The files of a node's shards: made from snapshots, or taken over from a server that was killed.

When a shard loses its primary, a surviving node makes a new one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from psrv.errors import ServerError
from psrv.server.forwarder import Forwarder
from psrv.shard.format import (
    PRIMARY,
    REPLICA,
    UNFINISHED,
    ShardLayout,
    create_shard,
    from_snapshot,
    kind_of,
    needed_and_free,
    read_row,
)
from psrv.shard.private_folder import clear_removed_mark, make_private_folder, removed_error
from psrv.shard.shard import ThreadedShard
from psrv.solvers.partition import ShardSet
from psrv.solvers.solver import RoundSolver, Solver


@dataclass(frozen=True)
class Settings:
    """The settings of a node's server.

    dlctl.contract.ParameterServer describes the fields that have no description here.
    """

    attempt: int
    node: int
    learners_per_node: list[int]
    solver: Solver | RoundSolver
    host: str
    """This node's address on the job's network."""
    timeout_s: float = 120.0
    snapshot_every_s: float = 60.0
    bounded: bool = False
    """Whether staleness is bounded: learners then wait for one another's clocks."""
    solver_line: str = ""
    """Describes the solver; all servers must have the same line."""
    takes_over: bool = False
    """Whether learners of this node still work in files that an earlier server of it made."""
    memory_left: Callable[[], int | None] = lambda: None
    """Return how many bytes this process may still allocate; None: there is no limit."""


class ShardFiles:
    """Makes and opens the shard files of one node.

    Args:
        shards: Where the files lie, and what they hold.
        settings: The server's.
    """

    def __init__(self, shards: ShardSet, settings: Settings) -> None:
        parameters, solver, folder = shards.parameters, settings.solver, shards.folder
        if parameters.rows != 1 + solver.rows:
            raise ServerError(
                f"learner 0 has snapshots of {parameters.rows} rows, and this server's solver "
                f"keeps {1 + solver.rows}",
                hint="all must have the same solver with the same settings",
            )
        try:
            make_private_folder(folder)
            for unfinished in folder.glob(UNFINISHED):  # left by a server that was killed
                if unfinished.is_dir():
                    shutil.rmtree(unfinished, ignore_errors=True)  # its compiler may still run
                else:
                    unfinished.unlink()
            if not settings.takes_over:
                clear_removed_mark(folder)
        except OSError as error:
            raise ServerError(
                f"there can be no shards in {folder}: {error.strerror or error}",
                hint="remove what is there, if it is not of a training that runs",
            ) from error
        learners = settings.learners_per_node
        self.shards = shards
        self._solver = solver
        self._learners = {PRIMARY: sum(learners), REPLICA: learners[settings.node]}
        self._takes_over = settings.takes_over
        self._memory_left_bytes = settings.memory_left()

    def exist(self) -> bool:
        """Return whether all files are still there."""
        return all(self.shards.path(number).exists() for number in range(self.shards.count))

    def check_memory(self, primaries: Sequence[bool]) -> None:
        """Check that the shards which have to be made fit into memory.

        Args:
            primaries: For each shard, whether this node is its primary.

        Raises:
            ServerError: They don't; the message has both numbers.
        """
        wanted = 0
        for number, is_primary in enumerate(primaries):
            if not self.shards.path(number).exists():
                layout = self._layout(number, PRIMARY if is_primary else REPLICA)
                slots = 1 + self._learners[REPLICA]  # the server's, and its node's learners'
                wanted += layout.copies_at_bytes + slots * layout.slot_bytes
        if wanted > (free_bytes := shutil.disk_usage(self.shards.folder).free):
            raise ServerError(
                f"{self.shards.folder} can't hold the shards of the parameter server: "
                f"{needed_and_free(wanted, free_bytes)}",
                hint="use more nodes, or make /dev/shm larger",
            )
        left_bytes = self._memory_left_bytes
        if left_bytes is not None and wanted > left_bytes:  # all that is touched counts as ours
            raise ServerError(
                f"the shards of the parameter server need {-(-wanted // 2**20):,} MiB of memory, "
                f"and {left_bytes // 2**20:,} MiB are left to the job on this node",
                hint="ask for more memory for each learner, or use more nodes",
            )

    def can_host_another_primary(self, primaries: Sequence[bool]) -> bool:
        """Return whether this node has memory to become the primary of one more shard.

        Args:
            primaries: See `check_memory`; all shards have been made.
        """
        sizes = [
            self._layout(number, PRIMARY).copies_at_bytes
            for number, is_primary in enumerate(primaries)
            if not is_primary
        ]
        return max(sizes, default=0) <= shutil.disk_usage(self.shards.folder).free

    def open(self, number: int, is_primary: bool) -> ThreadedShard:
        """Open a shard of this node; take over the file of an earlier server if there is one.

        Raises:
            ServerError: There is not enough memory, or the snapshot is damaged.
        """
        path = self.shards.path(number)
        if path.exists():
            return ThreadedShard(path, self._layout(number, kind_of(path)), self.shards.attempt)
        if self._takes_over:  # old learners would go on in the removed file, new ones in this
            raise removed_error(path)
        kind = PRIMARY if is_primary else REPLICA
        layout = self._layout(number, kind)
        rows = self.shards.parameters.rows if is_primary else 1
        fill = from_snapshot(self.shards.snapshot(number), rows)
        create_shard(path, layout, self.shards.attempt, learners=self._learners[kind], fill=fill)
        return ThreadedShard(path, layout, self.shards.attempt)

    def promote(self, forwarder: Forwarder) -> ThreadedShard:
        """Make this node the primary of a shard; its learners keep using their replica.

        The new primary has the replica's weights, which are newer than the newest snapshot, and the
        solver's rows from that snapshot.

        With nodes beside this one and the lost one, some pushes may be missing or be applied twice.
        Missing are those of another node that the lost primary had applied and this node has not
        seen. Applied twice are those whose effect is in the weights here, while the other node has
        had no answer and sends them again (a few blocks of a push).
        """
        number = forwarder.number
        path = self.shards.folder / f"shard-{number}.home"
        layout = self._layout(number, PRIMARY)
        if path.exists():
            return ThreadedShard(path, layout, self.shards.attempt)

        def fill(rows: Sequence[torch.Tensor]) -> None:
            forwarder.settled(rows[0])
            for row in range(1, self.shards.parameters.rows):
                read_row(self.shards.snapshot(number), row, rows[row])

        had = [had for had, _ in forwarder.shard.all_progress()]
        create_shard(path, layout, self.shards.attempt, fill=fill, had=had)
        return ThreadedShard(path, layout, self.shards.attempt)

    def _layout(self, number: int, kind: int) -> ShardLayout:
        return self.shards.layout(number, self._solver, kind)
