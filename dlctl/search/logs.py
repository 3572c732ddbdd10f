"""The logs of a search: of its hub, nameserver, brokers, model and workers; and of one trial."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dlctl.contract import search as names
from dlctl.files.small_files import read_appended
from dlctl.logs.one_log import OneLog
from dlctl.logs.reader import LogReader, read

if TYPE_CHECKING:
    from dlctl.search.trials import TrialRow
    from dlctl.transport import Transport

_HUB = ("attempts/*/slurm.out", "attempts/*/learner-0.log")
_PROCESSES = f"{names.LOGS}/*.log"
_WORKERS = f"{names.WORKERS}/*/*.out"
_SOURCES = (
    (re.compile(r"attempts/(\d+)/slurm\.out"), "job"),
    (re.compile(r"attempts/(\d+)/learner-0\.log"), "hub"),
    (re.compile(rf"{names.LOGS}/(.+)\.log"), ""),
    (re.compile(rf"{names.WORKERS}/([^/]+)/(\d+)\.out"), "worker"),
    (re.compile(rf"{names.TASKS}/[^/]+/log"), "trial"),
    (re.compile(rf"{names.TASKS}/[^/]+/checkpoint/job/attempts/(\d+)/learner-(\d+)\.log"),
     "learner"),
)  # fmt: skip


def source_of(name: str) -> tuple[int, str]:
    """Return the attempt and the source of a log, by its name in the job directory."""
    for pattern, source in _SOURCES:
        if (match := pattern.fullmatch(name)) is None:
            continue
        if source == "worker":
            return 0, f"{match[1]}.{match[2]}"
        if source == "learner":
            return int(match[1]), f"learner-{match[2]}"
        if source in ("job", "hub"):
            return int(match[1]), source
        return 0, source or match[1]
    return 0, name


def _log_of(name: str) -> OneLog:
    place = next((n for n, (each, _) in enumerate(_SOURCES) if each.fullmatch(name)), len(_SOURCES))
    return OneLog(name, *source_of(name), (place, name))


def search_logs(job_dir: str) -> LogReader:
    """Return the reader of what hub, nameserver, brokers, model and workers print."""
    globs = [*_HUB, _PROCESSES, _WORKERS]
    return LogReader(job_dir, first_attempt=0, log_of=_log_of, patterns=globs)


def trial_logs(job_dir: str, row: TrialRow) -> LogReader:
    """Return the reader of what one trial's program prints, in all its runs."""
    folder = f"{names.TASKS}/{row.id}"
    globs = [f"{folder}/log", f"{folder}/checkpoint/job/attempts/*/learner-*.log"]
    return LogReader(job_dir, first_attempt=0, log_of=_log_of, patterns=globs)


def last_lines(transport: Transport, job_dir: str, row: TrialRow, lines: int) -> list[str]:
    """Return the end of what a trial's program has printed; of a training, its learner's log."""
    reader = trial_logs(job_dir, row)
    kept: list[str] = []
    for piece in read(transport, reader):
        kept = [*kept, *piece.content.decode(errors="replace").splitlines()][-lines:]
    return kept


def runs_of(transport: Transport, job_dir: str, row: TrialRow) -> int | None:
    """Return how often a trial that is a training was begun; None for other trials."""
    folder = f"{names.TASKS}/{row.id}/checkpoint/job"  # the first attempt's plan is at the top
    globs = [f"{folder}/plan.json", f"{folder}/attempts/*/plan.json"]
    return len(read_appended(transport, job_dir, globs, {}, 1)) or None
