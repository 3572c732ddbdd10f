"""Save and load the state of all learners: a short pause to copy it, then write it in parallel.

The engine knows nothing about models. Every learner must call every method, except `poll`, `busy`
and `close`.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from dlctl.contract.ground.amounts import format_bytes
from learner.checkpoint.load import Learners, Loaded, use_newest
from learner.checkpoint.partition import Snapshot, parts_of, rank_parts, shapes
from learner.checkpoint.state_tree import Packed, pack
from learner.checkpoint.writer_process import WriterProcess
from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.publish import (
    LEAST_KEPT,
    Order,
    ShareMissing,
    complete,
    remove_leftovers,
    remove_quietly,
)
from learner.checkpoint_files.share_writer import leave_failure, write_part
from learner.errors import UserFault
from learner.job.context import successor
from learner.system.memory import MemoryRequest, have_room, memory_left

T = TypeVar("T")
_LONGEST_WAIT_S = 600.0
"""How long a learner without a writer waits for the shares of the others."""
_ALONE_S = 20.0
"""How long its writer waits for them once the learner is done."""


@dataclass(frozen=True)
class Keep:
    """Which checkpoints are kept."""

    newest: int = LEAST_KEPT
    every_steps: int | None = None


class CheckpointEngine:
    """Checkpoints in one directory."""

    def __init__(
        self,
        root: Path,
        learners: Learners,
        say: Callable[[str], None],
        keep: Keep | None = None,
        writer: WriterProcess | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Create an engine.

        Args:
            root: directory of the checkpoints, on a file system that all learners see.
            learners: how the learners communicate.
            say: prints a line; only rank 0 calls it.
            keep: which checkpoints are kept.
            writer: a process started before MPI; without one the learner writes by itself.
            disk: what the learner itself writes to.
        """
        self._root = root
        self._learners = learners
        self._say = say
        self._keep = keep or Keep()
        self._writer = writer
        self._disk = disk or Disk()
        self._token = ""
        self._successor = successor()
        self._orders = 0
        self._damaged: list[int] = []
        """Steps whose checkpoints `load` skipped."""
        self._order: Order | None = None
        """The checkpoint that is being written."""
        self._share_problem: str | None = None
        self._share_done = True
        self._complete = False
        self._abandoned: Path | None = None
        self._warned: set[str] = set()
        self.saved_step: int | None = None
        """The step of the newest complete checkpoint, as far as rank 0 knows; the other learners
        know only about their own shares until they `wait`."""
        self.failures = 0
        """How many checkpoints failed; learners other than rank 0 count only their own shares."""
        self.write_s = 0.0
        """How long writing the last checkpoint took, in parallel with training."""
        self.copy_s = 0.0
        """How long the last `save` blocked its caller."""

    # Saving -------------------------------------------------------------------------------------

    def prepare(self, tree: Any, own: Any = None) -> None:
        """Do the first `save`'s extra work in advance: allocate memory, remove leftovers."""
        packed = pack(tree)
        snapshot = self._snapshot(packed, own, 0)
        if self._agree(packed, snapshot) and self._writer is not None:
            self._writer.memory(snapshot.size_bytes, pinned=snapshot.is_of_gpu)
        self._begin_writing()

    def save(
        self,
        step: int,
        tree: Any,
        settings: dict[str, int] | None = None,
        *,
        own: Any = None,
        epoch: int | None = None,
    ) -> bool:
        """Take a snapshot and have it written; return False if the last one is not yet written.

        Args:
            step: names the checkpoint.
            tree: the state: the same on every learner, except for its `Pieces`.
            settings: values that a later load can compare.
            own: this learner's own state, restored only with the same number of learners.
            epoch: for people who read the marker.

        Raises:
            UserFault: the state holds what a checkpoint can't, or the learners' states differ.
        """
        began = time.perf_counter()
        packed = pack(tree)
        if not self.ready():
            return False
        snapshot = self._snapshot(packed, own, step)
        has_room = self._agree(packed, snapshot)
        self._begin_writing()
        self._orders += 1
        order = Order(
            self._root, step, f"{self._token}-{self._orders}",
            self._learners.rank, self._learners.size,
            {"learners": self._learners.size, **(settings or {})}, epoch,
            self._keep.newest, self._keep.every_steps, str(self._successor or ""), self._damaged,
        )  # fmt: skip
        self._order, self._share_done, self._share_problem = order, False, None
        if has_room and self._writer is not None:
            size_bytes = snapshot.size_bytes
            snapshot.copy_to(self._writer.memory(size_bytes, pinned=snapshot.is_of_gpu))
            self._writer.order(order, snapshot.tree_place, snapshot.pieces_place)
        else:
            self._write_here(order, snapshot)
        self.copy_s = time.perf_counter() - began
        return True

    def ready(self) -> bool:
        """Return whether all learners' writers are idle, so that a `save` would not be postponed.

        Rank 0's writer, which waits for all shares, is informed about a share that will not come.
        """
        self.poll()
        answers = self._learners.collect((self.busy, self._share_problem))
        busy = [rank for rank, (busy, _) in enumerate(answers) if busy]
        if busy == [0]:
            self._report_lost_share([problem for _, problem in answers])
        if not busy:
            self._remove_abandoned()
        return not busy

    def _snapshot(self, packed: Packed, own: Any, step: int) -> Snapshot:
        rank, size = self._learners.rank, self._learners.size
        text = packed.to_bytes(step=step, learners=size) if rank == 0 else b""
        return Snapshot(parts_of(packed, rank, size) + rank_parts(pack(own)), text)

    def _agree(self, packed: Packed, snapshot: Snapshot) -> bool:
        """Return whether this learner has a writer and enough memory for its snapshot.

        Raises:
            UserFault: the learners' states differ.
        """
        mine = shapes(packed.leaves)
        digest = hashlib.sha256(repr(mine).encode()).hexdigest()
        more_bytes, writes = 0, self._writer is not None and self._writer.death is None
        if writes and self._writer is not None:
            more_bytes = self._writer.missing_bytes(snapshot.size_bytes)
        request = MemoryRequest(more_bytes, memory_left() if more_bytes else {})
        answers = self._learners.collect((digest, request))
        if len({digest for digest, _ in answers}) > 1:
            self._name_difference(mine)
        has_room = have_room([request for _, request in answers])
        if not all(has_room):
            self._warn(
                "there is no room in memory for a snapshot of "
                f"{format_bytes(snapshot.size_bytes)}: training waits while a checkpoint is written"
            )
        return writes and has_room[self._learners.rank]

    def _name_difference(self, mine: list[Any]) -> None:
        first = self._learners.share(mine)
        pairs = zip_longest(mine, first)
        differs = next((f"{a} instead of {b}" for a, b in pairs if a != b), None)
        for rank, other in enumerate(self._learners.collect(differs)):
            if other is not None:
                raise UserFault(f"learner {rank} saves a different state than learner 0: {other}")

    def _begin_writing(self) -> None:
        """Remove the leftovers of an earlier attempt, and choose a token for this one's folders.

        `load` never does this: a script that only reads must not disturb a training.
        """
        if self._token:
            return
        if self._learners.rank == 0 and not (self._successor and self._successor.exists()):
            try:
                remove_leftovers(self._root, self._disk)
            except OSError as error:
                self._warn(f"the leftovers of a crash in {self._root} can't be removed: {error}")
        self._token = self._learners.share(f"{socket.gethostname()}-{secrets.token_hex(4)}")

    def _write_here(self, order: Order, snapshot: Snapshot) -> None:
        began = time.monotonic()
        pieces = [(part.name, part.values.cpu().numpy()) for part in snapshot.parts]
        self._share_problem = write_part(order, pieces, self._disk)
        self._share_done = True
        if order.rank == 0:
            problem, warnings = complete(order, snapshot.tree, self._disk, _patience())
            self._finish(order, problem, warnings, time.monotonic() - began)
        else:
            self._finish(order, self._share_problem, [], time.monotonic() - began)

    # Progress of the writer ---------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Return whether this learner's writer was busy at the last `poll`."""
        return self._order is not None

    def poll(self) -> None:
        """Process the writer's events without waiting."""
        if self._writer is None or self._order is None:
            return
        for event in self._writer.events():
            self._note(event)
        if self._writer.death is not None and self._order is not None:
            order, problem = self._order, self._writer.death
            if not self._share_done:
                leave_failure(order, problem, self._disk)
                self._share_problem = problem
            if order.rank == 0:
                self._abandoned = order.temporary
            self._finish(order, problem, [], 0.0)

    def _note(self, event: dict[str, Any]) -> None:
        order = self._order
        if order is None or event["step"] != order.step:
            return
        if event["event"] == "share":
            self._share_done, self._share_problem = True, event["problem"]
            if order.rank != 0:
                self._finish(order, event["problem"], [], event["took_s"])
        else:
            self._finish(order, event["problem"], event["warnings"], event["took_s"])

    def _finish(
        self, order: Order, problem: str | None, warnings: list[str], took_s: float
    ) -> None:
        self._order, self._share_done = None, True
        self.write_s = took_s or self.write_s
        if order.rank == 0:
            for warning in warnings:
                self._warn(warning)
            if problem is not None:
                self._say(f"WARNING: no checkpoint at step {order.step}: {problem}")
        self._complete = problem is None
        if self._complete:
            self.saved_step = order.step
        else:
            self.failures += 1

    def wait(self) -> bool:
        """Wait for the checkpoint being written; return whether the last one is complete."""
        while self.busy and not self._share_done:
            self._listen()
        self._report_lost_share(self._learners.collect(self._share_problem))
        while self.busy:
            self._listen()
        self._remove_abandoned()
        self._complete, self.saved_step = self._learners.share((self._complete, self.saved_step))
        return self._complete

    def _remove_abandoned(self) -> None:
        """Remove the folder that a dead writer of rank 0 left, once nobody writes to it."""
        if self._abandoned is not None:
            remove_quietly(self._abandoned, self._disk)
            self._abandoned = None

    def _listen(self) -> None:
        if self._writer is not None:
            self._writer.wait(1.0)
        self.poll()

    def _report_lost_share(self, problems: list[str | None]) -> None:
        if self._learners.rank != 0 or self._writer is None or not self.busy:
            return
        for rank, problem in enumerate(problems):
            if problem is not None:
                self._writer.tell_lost(f"the share of learner {rank}: {problem}")
                return

    def close(self) -> None:
        """Let the writer finish, then end it.

        The writer waits only briefly for the other learners' shares: call `wait` first, unless
        an error is being handled.
        """
        if self._writer is not None:
            self._writer.end(_ALONE_S)
            while self.busy:
                self._listen()
            self._writer.close()
            self._writer = None

    # Loading ------------------------------------------------------------------------------------

    def load(self, use: Callable[[Loaded], T]) -> T | None:
        """Open the newest complete checkpoint; return the result of `use`, None if there is none.

        If any learner finds the checkpoint damaged, `use` is called again with the previous one.

        Raises:
            UserFault: there are checkpoints, but all are damaged, or the file system fails.
        """
        found = use_newest(self._root, self._learners, self._warn, use)
        if found is None:
            return None
        self.saved_step, self._damaged = found.step, found.damaged
        return found.used

    def _warn(self, text: str) -> None:
        """Print each warning only once."""
        if text not in self._warned:
            self._warned.add(text)
            self._say(f"WARNING: {text}")


def _patience() -> Callable[[float], None]:
    deadline = time.monotonic() + _LONGEST_WAIT_S

    def may_wait(pause_s: float) -> None:
        if time.monotonic() > deadline:
            raise ShareMissing("not all learners' shares came in time")
        time.sleep(pause_s)

    return may_wait
