"""The files of a node's shards: made of snapshots, or taken over from a server that was killed.

Or made anew on a node that survives when a shard has lost its home.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from dlctl.contract import Parameters, snapshot_file
from psrv.errors import ServerError
from psrv.server.forwarder import Relay
from psrv.shard.format import (
    HOME,
    RELAY,
    UNFINISHED,
    ShardLayout,
    create_shard,
    from_snapshot,
    kind_of,
    read_row,
    room,
)
from psrv.shard.private_folder import forget_removed, make_own_folder, removed
from psrv.shard.shard import ThreadedShard
from psrv.solvers.native import build
from psrv.solvers.partition import layout_of
from psrv.solvers.solver import RoundSolver, Solver


class OwnShards:
    """Makes and opens the files of one node.

    Args:
        job_dir: Where the snapshots are.
        folder: In shared memory.
        attempt: Of the training.
        parameters: What all shards hold together.
        shards: How many there are.
        solver: The training's.
        learners: Of the whole training.
        learners_here: Of this node.
        takes_over: Whether they work in files that a server before this one has made.
        memory_left_bytes: That this process may still take; None: any.
    """

    def __init__(
        self,
        job_dir: Path,
        folder: Path,
        attempt: int,
        parameters: Parameters,
        shards: int,
        solver: Solver | RoundSolver,
        learners: int,
        learners_here: int,
        *,
        takes_over: bool = False,
        memory_left_bytes: int | None = None,
    ) -> None:
        if parameters.rows != 1 + solver.rows:
            raise ServerError(
                f"learner 0 has snapshots of {parameters.rows} rows, and this server's solver "
                f"keeps {1 + solver.rows}",
                hint="all must have the same solver with the same settings",
            )
        try:
            make_own_folder(folder)
            for unfinished in folder.glob(UNFINISHED):  # of a server that was killed
                if unfinished.is_dir():
                    shutil.rmtree(unfinished, ignore_errors=True)  # its compiler may live
                else:
                    unfinished.unlink()
            if not takes_over:
                forget_removed(folder)
        except OSError as error:
            raise ServerError(
                f"there can be no shards in {folder}: {error.strerror or error}",
                hint="remove what is there, if it is not of a training that runs",
            ) from error
        self._job_dir = job_dir
        self._folder = folder
        self._attempt = attempt
        self._parameters = parameters
        self._shards = shards
        self._solver = solver
        self._learners = {HOME: learners, RELAY: learners_here}
        self._takes_over = takes_over
        self._memory_left_bytes = memory_left_bytes

    @property
    def rows(self) -> int:
        """Rows of a snapshot."""
        return self._parameters.rows

    def snapshot(self, number: int) -> Path:
        """Return where the newest snapshot of a shard is."""
        return self._job_dir / snapshot_file(self._attempt, number)

    def compile_pushes(self) -> str | None:
        """Compile what learners load beside the shards; see psrv.solvers.native.build."""
        return build(self._folder, self._solver)

    def are_there(self) -> bool:
        """Return whether all files are: nobody has removed them."""
        return all((self._folder / f"shard-{shard}").exists() for shard in range(self._shards))

    def check_room(self, homes: Sequence[bool]) -> None:
        """Raise ServerError, with both numbers, if not all shards that are to be made have room.

        Args:
            homes: Of each shard, whether this node is its home.
        """
        wanted = 0
        for number, is_home in enumerate(homes):
            if not (self._folder / f"shard-{number}").exists():
                layout = self._layout(number, HOME if is_home else RELAY)
                slots = 1 + self._learners[RELAY]  # the server's and those of this node's learners
                wanted += layout.copies_at_bytes + slots * layout.slot_bytes
        free = os.statvfs(self._folder)
        if wanted > (free_bytes := free.f_bavail * free.f_frsize):
            raise ServerError(
                f"{self._folder} can't hold the shards of the parameter server: "
                f"{room(wanted, free_bytes)}",
                hint="use more nodes, or give /dev/shm more room",
            )
        left_bytes = self._memory_left_bytes
        if left_bytes is not None and wanted > left_bytes:  # all that is touched counts as ours
            raise ServerError(
                f"the shards of the parameter server need {-(-wanted // 2**20):,} MiB of memory, "
                f"and {left_bytes // 2**20:,} MiB are left to the job on this node",
                hint="ask for more memory for each learner, or use more nodes",
            )

    def room_for_a_master(self, homes: Sequence[bool]) -> bool:
        """Return whether this node could become the home of one more shard, of any.

        Args:
            homes: As above, once all shards have been made.
        """
        sizes = [
            self._layout(number, HOME).copies_at_bytes
            for number, is_home in enumerate(homes)
            if not is_home
        ]
        free = os.statvfs(self._folder)
        return max(sizes, default=0) <= free.f_bavail * free.f_frsize

    def open(self, number: int, is_home: bool) -> ThreadedShard:
        """Return a shard of this node; what a server before this one has left is taken over.

        Raises:
            ServerError: there is no room, or the snapshot is not what it should be.
        """
        path = self._folder / f"shard-{number}"
        if path.exists():
            return ThreadedShard(path, self._layout(number, kind_of(path)), self._attempt)
        if self._takes_over:  # learners would go on in the old one, and new ones in this
            raise removed(path)
        kind = HOME if is_home else RELAY
        layout = self._layout(number, kind)
        rows = self._parameters.rows if is_home else 1
        fill = from_snapshot(self.snapshot(number), rows)
        create_shard(path, layout, self._attempt, learners=self._learners[kind], fill=fill)
        return ThreadedShard(path, layout, self._attempt)

    def open_master(self, relay: Relay) -> ThreadedShard:
        """Return the home of a shard whose learners on this node keep their relay.

        It is made of the weights that this node has, which are newer than the newest snapshot;
        what the solver keeps is as it was in that.

        With other nodes beside this one and the lost one some pushes may be missing then, or be in
        twice: what the lost home had of another node and this one has not seen, and what is in the
        weights here and had no answer there, which that node sends again (a few blocks of a push).
        """
        number = relay.number
        path = self._folder / f"shard-{number}.home"
        layout = self._layout(number, HOME)
        if path.exists():
            return ThreadedShard(path, layout, self._attempt)

        def fill(rows: Sequence[torch.Tensor]) -> None:
            relay.settled(rows[0])
            for row in range(1, self._parameters.rows):
                read_row(self.snapshot(number), row, rows[row])

        had = [had for had, _ in relay.shard.all_progress()]
        create_shard(path, layout, self._attempt, fill=fill, had=had)
        return ThreadedShard(path, layout, self._attempt)

    def _layout(self, number: int, kind: int) -> ShardLayout:
        return layout_of(self._parameters, self._shards, number, self._solver, kind)
