"""Read the statuses of an attempt's processes, and rule on those that can't write their own.

Every status file has one writer, its process. The supervisor's rulings have a file of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dlctl.contract import (
    Rulings,
    Status,
    end_file,
    readable_record,
    rulings_file,
    status_file,
    to_json,
    use_file,
    write_whole,
)
from dlctl.contract.measured.past import LearnerUse
from learner.job.outcome import Outcome
from learner.job.status import with_end
from learner.supervisor.control import EndRequest

_LIVES = 8
"""How many lives of a process are remembered: what is restarted for weeks fills no disk."""


class Statuses:
    """Reads the statuses of an attempt, and writes the supervisor's rulings."""

    def __init__(self, job_dir: Path, attempt: int) -> None:
        self.attempt = attempt
        self._job_dir = job_dir
        self._rulings = Rulings()
        self._is_written = True
        self._own: dict[tuple[str, int], Status] = {}
        """Each process's own status, as last read: a file system may fail for a moment."""

    def read(self, role: str, rank: int) -> Status | None:
        """Return the status of a process; None if it never wrote one that can be read."""
        path = self._job_dir / status_file(self.attempt, role, rank)
        if (own := readable_record(Status, path)) is not None:
            self._own[role, rank] = own if role != "learner" else with_end(own, self._end(rank))
        return self._rulings.on(role, rank, self._own.get((role, rank)))

    def _end(self, rank: int) -> Path:
        return self._job_dir / end_file(self.attempt, rank)

    def learners(self, count: int) -> list[Status]:
        """Return the learners' statuses in rank order, without those that can't be read."""
        found = (self.read("learner", rank) for rank in range(count))
        return [status for status in found if status is not None]

    def most_bytes(self, count: int) -> dict[int, int]:
        """Return the most memory that each learner's processes had, where it was measured."""
        files = {rank: self._job_dir / use_file(self.attempt, rank) for rank in range(count)}
        uses = {rank: readable_record(LearnerUse, path) for rank, path in files.items()}
        return {rank: use.memory_bytes for rank, use in uses.items() if use}

    def rule(self, *new: Status) -> None:
        """Rule on processes; what was presumed of them is forgotten."""
        kept = self._rulings.statuses
        for each in new:
            about = [s for s in kept if (s.role, s.rank) == (each.role, each.rank)]
            known = [s for s in about if s.started_at != each.started_at][1 - _LIVES :]
            kept = [*(s for s in kept if s not in about), *known, each]
        self._change(Rulings(kept, self._presumed_of_others(new)))

    def presume(self, *new: Status) -> None:
        """Say how processes that left no word have ended, unless they say it themselves."""
        others = self._presumed_of_others(new)
        self._change(Rulings(self._rulings.statuses, [*others, *new]))

    def retry(self) -> None:
        """Write the rulings if the last attempt to write them failed."""
        if not self._is_written:
            # A full disk must not end a training: the supervisor knows its rulings anyway.
            with contextlib.suppress(OSError):
                write_whole(self._job_dir / rulings_file(self.attempt), to_json(self._rulings))
                self._is_written = True

    def close(self, learners: int, failed_rank: int | None) -> None:
        """Presume the ends of learners whose watchdogs were killed before they could write them."""
        ended = [
            status.closed(failed=status.rank == failed_rank)
            for status in self.learners(learners) if not status.state.final
        ]  # fmt: skip
        if ended:
            self.presume(*ended)
        self.retry()

    def _presumed_of_others(self, new: tuple[Status, ...]) -> list[Status]:
        about = {(each.role, each.rank) for each in new}
        return [each for each in self._rulings.presumed if (each.role, each.rank) not in about]

    def _change(self, rulings: Rulings) -> None:
        self._rulings, self._is_written = rulings, False
        self.retry()


@dataclass(frozen=True)
class Observed:
    """The evidence about the learners and their launcher on which a verdict rests."""

    statuses: list[Status]
    """In rank order; a learner that never started has none."""
    launcher_exit: int | None
    launcher_words: list[str]
    request: EndRequest | None
    logs: dict[int, list[str]] = field(default_factory=dict)
    """The last lines in the logs of learners whose watchdog reported no end."""
    lost: dict[int, str] = field(default_factory=dict)
    """Why each learner was given up that the others continued without, by rank; `statuses` leaves
    these learners out."""
    failure: Outcome | None = None
    """Why the supervisor itself ended the learners; None if it did not."""
    checkpoints: bool = True
    """Whether there is a checkpoint to resume from."""
    undone: str = ""
    """Which part of the data the learners of a parameter server have not trained on, in words."""
    most_bytes: Mapping[int, int] = field(default_factory=dict)
    """The most memory that each learner's processes had, by rank, as far as anybody measured it."""
