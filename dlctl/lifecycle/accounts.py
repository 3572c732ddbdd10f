"""Gather what the ledger is computed from: three queries of a site for any number of trainings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dlctl import contract
from dlctl.contract import Plan, Status, Verdict
from dlctl.contract.metrics import MetricsLine, parse_lines
from dlctl.files.small_files import read_texts
from dlctl.lifecycle.session import Session
from dlctl.record import Record
from dlctl.scheduler.base import Usage

_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class AttemptAccount:
    """The records of one attempt; None is unknown."""

    attempt: int
    plan: Plan
    job_id: str = ""
    submitted_at: float | None = None
    supervisor: Status | None = None
    learner: Status | None = None
    """Learner 0's."""
    verdict: Verdict | None = None
    lines: list[MetricsLine] = field(default_factory=list)
    """Learner 0's measurements."""
    usage: Usage = field(default_factory=Usage)


def accounts(session: Session, records: Sequence[Record]) -> dict[str, list[AttemptAccount]]:
    """Return the attempts of each training that have had a job, by training id."""
    begun = _begun(session, records)
    names = {
        (record.training_id, n): [
            contract.plan_file(n), contract.status_file(n, "supervisor", 0),
            contract.status_file(n, "learner", 0), contract.verdict_file(n),
            contract.metrics_file(n, 0),
        ]
        for record in records for n in begun[record.training_id]
    }  # fmt: skip
    dirs = {record.training_id: record.job_dir for record in records}
    paths = [f"{dirs[i]}/{name}" for (i, _), some in names.items() for name in some]
    files = read_texts(session.transport, paths)
    found: dict[str, list[AttemptAccount]] = {record.training_id: [] for record in records}
    for (training_id, n), some in names.items():
        contents = [files[f"{dirs[training_id]}/{name}"] for name in some]
        submitted_at, job_id = begun[training_id][n]
        if (known := _account(n, job_id, submitted_at, contents)) is not None:
            found[training_id].append(known)
    return _with_usage(session, found)


def _begun(
    session: Session, records: Sequence[Record]
) -> dict[str, dict[int, tuple[float | None, str]]]:
    """Return when each attempt was submitted, and its job id."""
    lines = ["us=$(printf '\\037')"]
    for record in records:
        lines.append(
            f"(cd {shlex.quote(record.job_dir)}/attempts 2>/dev/null && for n in *; do "
            f"[ -f \"$n/submit.begin\" ] || continue; printf '%s' {shlex.quote(record.training_id)}"
            '"$us$n$us$(stat -c %Y "$n/submit.begin" 2>/dev/null)$us$(cat "$n/job_id" 2>/dev/null)"'
            "; echo; done)"
        )
    end = session.transport.run("\n".join([*lines, ":"]), timeout_s=_TIMEOUT_S)
    found: dict[str, dict[int, tuple[float | None, str]]] = {r.training_id: {} for r in records}
    for line in end.text.split("\n"):
        cells = line.split("\037")
        if len(cells) == 4 and cells[0] in found and re.fullmatch(r"[1-9]\d*", cells[1]):
            submitted_at = float(cells[2]) if cells[2].isdecimal() else None
            job_id = "" if cells[3] == contract.NOBODY else cells[3].strip()
            found[cells[0]][int(cells[1])] = submitted_at, job_id
    return {training_id: dict(sorted(some.items())) for training_id, some in found.items()}


def _account(
    n: int, job_id: str, submitted_at: float | None, contents: list[bytes | None]
) -> AttemptAccount | None:
    plan_text, supervisor, learner, verdict, lines = contents
    if (plan := contract.understood(Plan, plan_text)) is None:
        return None
    return AttemptAccount(
        n, plan, job_id, submitted_at, contract.understood(Status, supervisor),
        contract.understood(Status, learner), contract.understood(Verdict, verdict),
        list(parse_lines(lines or b"")),
    )  # fmt: skip


def _with_usage(
    session: Session, found: dict[str, list[AttemptAccount]]
) -> dict[str, list[AttemptAccount]]:
    ids = sorted({each.job_id for some in found.values() for each in some if each.job_id})
    script = session.scheduler.usage_script(ids)
    if script is None:
        return found
    end = session.transport.run(script, timeout_s=_TIMEOUT_S)
    usage = session.scheduler.parse_usage(end.text)
    return {
        training_id: [replace(each, usage=usage.get(each.job_id, Usage())) for each in some]
        for training_id, some in found.items()
    }
