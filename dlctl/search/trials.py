"""What a search has found so far, from the model's log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import search as names
from dlctl.errors import RecordError
from dlctl.files.small_files import read_files

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record


@dataclass(frozen=True)
class TrialRow:
    """One trial."""

    number: int
    id: str
    """Of its task: `search/tasks/<id>` holds what its program printed."""
    point: dict[str, Any]
    outcome: str = ""
    """Empty: it has not ended."""
    metric: float | None = None
    error: str = ""
    worker: str = ""
    seconds: float = 0.0
    ended_at: float = 0.0
    """Unix seconds."""


@dataclass(frozen=True)
class Trials:
    """A search and its trials, in the order in which they were asked for."""

    spec: names.Spec
    rows: list[TrialRow]
    status: dict[str, Any]
    """What the hub counted last; empty before its first count."""

    @property
    def ended(self) -> list[TrialRow]:
        """Return the trials that have ended."""
        return [row for row in self.rows if row.outcome]

    @property
    def best(self) -> TrialRow | None:
        """Return the best trial; of equals the first one."""
        with_metric = [row for row in self.rows if row.metric is not None]
        sign = -1 if self.spec.maximize else 1
        return min(
            with_metric, key=lambda row: (sign * (row.metric or 0), row.number), default=None
        )


def read_trials(session: Session, record: Record) -> Trials:
    """Return the trials of a search.

    Raises:
        RecordError: the training is no search.
        TransferError: the site can't be read.
    """
    paths = [f"{record.job_dir}/{name}" for name in (names.SPEC, names.TRIALS, names.STATUS)]
    spec, trials, status = read_files(session.transport, paths).values()
    if spec is None:
        raise RecordError(
            f"{record.training_id} is a training, and no search",
            hint=f"dlctl show {record.training_id}",
        )
    return Trials(
        contract.from_json(names.Spec, spec), parse_trials(trials or b""),
        json.loads(status) if status else {},
    )  # fmt: skip


def parse_trials(content: bytes) -> list[TrialRow]:
    """Return the trials that a log holds; its last line may be cut."""
    rows: list[TrialRow] = []
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        event = json.loads(line)
        if event["event"] == "ask":
            rows += [TrialRow(t["number"], t["id"], t["point"]) for t in event["trials"]]
        elif event["event"] == "tell":
            asked = rows[event["number"]]
            rows[event["number"]] = TrialRow(
                asked.number, asked.id, asked.point, event["outcome"], event["metric"],
                event["error"], event["worker"], event["seconds"], event["time"],
            )  # fmt: skip
    return rows
