"""The statuses of an attempt's processes: what each wrote itself, and what the supervisor rules.

Every status file has one writer, its process. The supervisor's rulings have a file of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from dlctl.contract import (
    ContractError,
    Rulings,
    State,
    Status,
    read_record,
    rulings_file,
    status_file,
    to_json,
    write_whole,
)


class Statuses:
    """Reads the statuses of an attempt, and writes the supervisor's rulings."""

    def __init__(self, job_dir: Path, attempt: int) -> None:
        self.attempt = attempt
        self._job_dir = job_dir
        self._rulings = Rulings()

    def read(self, role: str, rank: int) -> Status | None:
        """Return the status of a process; None if it never wrote one that can be read."""
        own = None
        with contextlib.suppress(ContractError, OSError):
            own = read_record(Status, self._job_dir / status_file(self.attempt, role, rank))
        return self._rulings.on(role, rank, own)

    def learners(self, count: int) -> list[Status]:
        """Return the learners' statuses in rank order, without those that can't be read."""
        found = (self.read("learner", rank) for rank in range(count))
        return [status for status in found if status is not None]

    def rule(self, *new: Status) -> None:
        """Replace what is known about these processes.

        A full disk must not end a training: this supervisor knows its rulings without the file,
        which the next ruling completes.
        """
        about = {(status.role, status.rank) for status in new}
        kept = [each for each in self._rulings.statuses if (each.role, each.rank) not in about]
        self._rulings = Rulings([*kept, *new])
        with contextlib.suppress(OSError):
            path = self._job_dir / rulings_file(self.attempt)
            write_whole(path, to_json(self._rulings))

    def close(self, statuses: list[Status], failed_rank: int | None) -> None:
        """Rule on learners whose watchdogs were killed before they could write how they ended."""
        ended = []
        for status in statuses:
            if status.state.final:
                continue
            state, reason = State.CANCELLED, "ended with the others"
            if status.rank == failed_rank:
                state, reason = State.FAILED, "killed from outside"
            ended.append(dataclasses.replace(status, state=state, reason=reason))
        if ended:
            self.rule(*ended)
