"""Put the parsers together that a manifest asks for, and find the files that they read.

Imported only if a manifest asks for any: the parsers take as long to import as all the rest.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import Plan
from dlctl.contract.launchers import Ranks
from dlctl.contract.measured.parsers import LINE_LOOKAHEAD, SPELLINGS, ParserType
from dlctl.contract.metrics import MetricsLine, Source
from learner.collect.parsers.auto import AutoParser
from learner.collect.parsers.emetrics import EMETRICS_FILE, EmetricsParser
from learner.collect.parsers.record import LineParser
from learner.collect.parsers.regex import Group, RegexParser
from learner.collect.parsers.tensorboard import EventParser
from learner.collect.parsers.user import UserParser
from learner.collect.parsing import EventFeed, Feed, Found, LineFeed, Parsing
from learner.collect.state import State
from learner.job.environment import service_variables
from learner.job.metrics import MetricsFile

Complain = Callable[[str], None]
_Made = tuple[Found, Callable[[Found, dict[str, Any]], Feed]]


def make_parsing(
    plan: Plan, job_dir: Path, attempt: int, rank: int, complain: Complain
) -> Parsing | None:
    """Return the parsers that the manifest asks for; None if it asks for none.

    Raises:
        ValueError: a regular expression is none.
    """
    settings = plan.evaluation_metrics or {}
    kind = SPELLINGS.get(str(settings.get("type") or ""), ParserType.NONE)
    if kind is ParserType.NONE:
        return None
    is_default = bool(settings.get("default"))
    if is_default and rank > 0:
        return None  # what learners print alike would be as many curves
    source = _Sources(settings, kind, job_dir, attempt, rank, complain)
    path = job_dir / contract.metrics_file(attempt, rank, Source.LOG)
    state = State(job_dir / contract.collector_state(rank), path, attempt)
    warned = MetricsFile(path, warn=lambda text: complain(text.removeprefix("WARNING: ")))
    return Parsing(source.files, job_dir, warned, state)


class _Sources:
    """The files that one rank's collector parses, each with its parser."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        kind: ParserType,
        job_dir: Path,
        attempt: int,
        rank: int,
        complain: Complain,
    ) -> None:
        self._settings, self._kind, self._job_dir = settings, kind, job_dir
        self._log = job_dir / contract.learner_log(attempt, rank)
        self._own_reports = [job_dir / contract.metrics_file(attempt, rank, source)
                             for source in (Source.PROGRAM, Source.PROGRESS)]  # fmt: skip
        self._rank = rank
        self._complain = complain
        self._variables = service_variables(job_dir, attempt, Ranks(rank, 1, 0, 1, 0))
        groups = settings.get("groups") if kind is ParserType.REGEX else None
        self._groups = [Group.of(str(name), plain) for name, plain in (groups or {}).items()]

    def files(self) -> Iterator[_Made]:
        """Yield the files that are there now. What learners share is rank 0's."""
        if self._kind is ParserType.TENSORBOARD:
            if self._rank == 0:
                yield from self._event_files()
            return
        if self._kind is not ParserType.EMETRICS:
            yield Found(self._log), self._own_log
        if self._rank == 0:
            yield from self._shared_files()

    def _event_files(self) -> Iterator[_Made]:
        folder = str(self._settings.get("in") or TENSORBOARD_IN)
        for place in (resolve(folder, self._variables), Path(self._variables["LOG_DIR"])):
            for found in files_in(place, lambda name: "tfevents" in name):
                yield found, self._events

    def _shared_files(self) -> Iterator[_Made]:
        emetrics = self._kind is ParserType.EMETRICS
        names = (EMETRICS_FILE,) if emetrics else TRAINING_LOGS
        folder = self._settings.get("in")
        folders = [resolve(str(folder), self._variables)] if folder else []
        for place in (*folders, Path(self._variables["LOG_DIR"])):
            for found in files_in(place, names.__contains__):
                yield found, self._lines

    def _events(self, found: Found, state: dict[str, Any]) -> Feed:
        group = found.below[-1] if found.below else ""
        subid = "/".join(found.below[:-1])
        return EventFeed(found.path, EventParser(group, subid), state, self._complain)

    def _lines(self, found: Found, state: dict[str, Any]) -> Feed:
        return LineFeed(found.path, self._parser(found.subid), state)

    def _own_log(self, found: Found, state: dict[str, Any]) -> Feed:
        return LineFeed(found.path, self._parser(""), state, ends=True)

    def _parser(self, subid: str) -> LineParser:
        if self._kind is ParserType.EMETRICS:
            return EmetricsParser(self._complain, subid)
        if self._kind is ParserType.AUTO:
            if self._settings.get("default"):
                return _UntilReported(self._own_reports, subid, self._complain)
            return AutoParser(subid, self._complain)
        if self._kind is ParserType.PYTHON:
            file = self._job_dir / contract.CODE / str(self._settings.get("parser"))
            return UserParser(file, self._complain, subid)
        lookahead = int(self._settings.get("line_lookahead") or LINE_LOOKAHEAD)
        return RegexParser(self._groups, self._complain, lookahead, subid)


class _UntilReported(AutoParser):
    """Reads a log by rules for which nobody has asked, until the program reports metrics itself."""

    def __init__(self, reports: list[Path], subid: str, complain: Complain) -> None:
        super().__init__(subid, complain)
        self._reports = reports

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines; none once there are reports."""
        return [] if any(path.exists() for path in self._reports) else super().feed(text)


TRAINING_LOGS = ("training-log.txt", "user_log.txt")

TENSORBOARD_IN = "$JOB_STATE_DIR/logs/tb"
_MOST_ENTRIES = 20_000
_MOST_DEPTH = 8


def resolve(text: str, variables: Mapping[str, str]) -> Path:
    """Return the path that `in` names; a relative one is below LOG_DIR."""
    return Path(variables["LOG_DIR"], string.Template(text).safe_substitute(variables))


def files_in(place: Path, is_wanted: Callable[[str], bool]) -> Iterator[Found]:
    """Yield the files with wanted names in a folder and its sub-folders; a file is itself.

    Not behind links, and not without end: a folder may be full of other things.
    """
    if place.is_file():
        yield Found(place)
        return
    waiting: list[tuple[Path, tuple[str, ...]]] = [(place, ())]
    count = 0
    while waiting:
        current, below = waiting.pop(0)
        try:
            with os.scandir(current) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            count += 1
            if count > _MOST_ENTRIES:
                return
            try:
                if entry.is_file(follow_symlinks=False):
                    if is_wanted(entry.name):
                        yield Found(Path(entry.path), below)
                elif entry.is_dir(follow_symlinks=False) and len(below) < _MOST_DEPTH:
                    waiting.append((Path(entry.path), (*below, entry.name)))
            except OSError:
                continue
