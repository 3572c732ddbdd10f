"""Everything that is known of one search: its trials, the jobs of its workers, its brokers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import search as names
from dlctl.errors import RecordError, SchedulerError
from dlctl.files.small_files import read_appended
from dlctl.lifecycle import read_queue
from dlctl.lifecycle.observe import parse_answer
from dlctl.lifecycle.waiting import Pace
from dlctl.search.trials import TrialLog, Trials
from dlctl.search.workers import ids_of
from dlctl.units import natural

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_LIMIT_BYTES = 8 << 20
"""The most that one look reads of the log."""
_BROKER_FILE = re.compile(rf"{names.BROKERS}/([^/]+)/{re.escape(names.BROKER_STATUS)}")
_GROUP_FILE = re.compile(rf"{names.WORKERS}/([^/]+)/submit\.end")
_ARRAY = re.compile(r"(\d+)_(?:(\d+)|\[([\d,:%-]+)\])")
ENDED = "ENDED"
"""The state of a job that the scheduler does not know any more."""


@dataclass(frozen=True)
class WorkerJob:
    """A worker as its scheduler knows it."""

    name: str
    """The worker's name, such as `w1.0`: its group, and its number there."""
    job_id: str
    state: str
    """`PENDING`, `RUNNING` and so on; `ENDED` if the scheduler does not know it any more."""
    reason: str = ""
    """Why it waits, or how it ended."""
    nodes: str = ""

    @property
    def lives(self) -> bool:
        """Return whether it waits or runs."""
        return self.state in ("PENDING", "RUNNING", "SUSPENDED", "ENDING", "UNKNOWN")


@dataclass(frozen=True)
class Overview:
    """A search, as its site knew it at one moment."""

    trials: Trials
    brokers: list[names.BrokerStatus] = field(default_factory=list)
    jobs: list[WorkerJob] = field(default_factory=list)
    queue_problem: str = ""
    """Why the scheduler did not answer; then `jobs` is of an earlier look."""
    now: float = 0.0
    """The time by the site's clock; 0 if it is not known."""
    hub: dict[str, Any] = field(default_factory=dict)
    """What the hub has told of its workers: `wanted`, `by` and `error`; empty before that."""
    is_over: bool = False
    """Whether the hub has ended: what brokers told of running trials is old."""

    @property
    def spec(self) -> names.Spec:
        """Return what was decided before the search began."""
        return self.trials.spec

    @property
    def workers(self) -> dict[str, names.WorkerStatus]:
        """Return what brokers tell of the workers; of a worker that moved, the newest."""
        found: dict[str, names.WorkerStatus] = {}
        for broker in self.brokers:
            for worker in broker.workers:
                known = found.get(worker.name)
                if known is None or worker.seen_s_ago < known.seen_s_ago:
                    found[worker.name] = worker
        return found

    @property
    def hub_asks(self) -> bool:
        """Return whether workers are wanted that the hub may not submit itself."""
        return self.hub.get("by") == "client"

    @property
    def wanted(self) -> dict[str, int]:
        """Return how many workers of each pool the hub wants."""
        return dict(self.hub.get("wanted", {}))

    @property
    def running(self) -> int | None:
        """Return how many trials workers have; None without a broker that tells."""
        if self.is_over:
            return 0
        if not self.brokers:
            return None
        return min(self.trials.outstanding, sum(w.running for w in self.workers.values()))


class SearchReader:
    """Keeps what is known of one search as new as its site tells."""

    def __init__(self, record: Record) -> None:
        self.lock = threading.RLock()
        """Held while the trials grow."""
        self.problem = ""
        """Why nothing is known: the training is no search, or its files are damaged."""
        self.seen_at = 0.0
        """When the site last answered (Unix seconds here); 0 if never."""
        self._record = record
        self._spec: names.Spec | None = None
        self._log = TrialLog(f"{record.job_dir}/{names.TRIALS}")
        self._files: dict[str, bytes] = {}
        self._jobs: list[WorkerJob] = []
        self._queue_problem = ""
        self._clock_ahead_s: float | None = None
        """How far the site's clock is ahead of this machine's."""
        self._pace = Pace()
        self._queue: object = None
        """The answer of the queue that `_jobs` is from."""
        self._jobs_of: object = None
        """What the files told when the queue was asked."""

    def refresh(self, session: Session, record: Record) -> bool:
        """Bring what is new; return whether anything was.

        Raises:
            TransportError
        """
        self._record = record
        try:
            grew = self._read_files(session)
        except RecordError as error:
            changed, self.problem = self.problem != error.message, error.message
            return changed
        self.problem = ""
        before = self._jobs
        self._read_jobs(session)
        self.seen_at = time.time()
        return grew or before != self._jobs

    @property
    def overview(self) -> Overview:
        """Return what is known.

        Raises:
            RecordError: the training is no search, or its files are damaged.
        """
        if self.problem or self._spec is None:
            raise RecordError(self.problem or f"{self._record.training_id}: nothing is known yet",
                              hint=f"dlctl show {self._record.training_id}")  # fmt: skip
        ahead_s = self._clock_ahead_s
        with self.lock:
            return Overview(
                self._log.trials(self._spec), _brokers(self._files), self._jobs,
                self._queue_problem, 0.0 if ahead_s is None else time.time() + ahead_s,
                _hub(self._files.get(names.STATUS, b"")), self._record.state.final,
            )  # fmt: skip

    def _read_files(self, session: Session) -> bool:
        """Bring the files; the small ones are read whole each time."""
        grew = False
        while True:
            offsets: dict[str, int | None] = {names.TRIALS: self._log.size_bytes}
            if self._spec is not None:
                offsets[names.SPEC] = None
            found = read_appended(
                session.transport, self._record.job_dir,
                [names.SPEC, names.TRIALS, names.STATUS, f"{names.BROKERS}/*/{names.BROKER_STATUS}",
                 f"{names.WORKERS}/*/submit.end"],
                offsets, _LIMIT_BYTES,
            )  # fmt: skip
            content = found.pop(names.TRIALS, b"")
            if spec := found.pop(names.SPEC, None):
                self._spec = _spec(self._record, spec)
            if self._spec is None:
                raise _no_search(self._record)
            with self.lock:
                self._log.feed(content)
            grew = grew or bool(content) or found != self._files
            self._files = found
            if len(content) < _LIMIT_BYTES:
                return grew

    def _read_jobs(self, session: Session) -> None:
        groups = {
            match[1]: answer for name, content in self._files.items()
            if (match := _GROUP_FILE.fullmatch(name)) and (answer := parse_answer(content))
        }  # fmt: skip
        ids = {group: ids_of(answer[1]) for group, answer in groups.items()}
        workers = {worker.name for broker in _brokers(self._files) for worker in broker.workers}
        is_over = self._record.state.final
        if (shown := (ids, workers, is_over)) != self._jobs_of:
            self._pace.hurry()
        elif is_over:
            return
        # The files are newer than what the look at the hub asked: a new worker may lack there.
        queue = (
            session.queue if session.queue is not self._queue and shown == self._jobs_of else None
        )
        if not any(ids.values()) or not self._pace.is_due(is_at_hand=queue is not None):
            return
        self._jobs_of = shown
        # What a broker tells of a worker proves that its job runs.
        self._pace.slow_down(is_waiting=all(
            job.state == "PENDING" or job.name in workers for job in self._jobs if job.lives
        ))  # fmt: skip
        try:
            self._queue = queue = queue or read_queue(session)
        except SchedulerError as error:
            self._queue_problem = error.message
            return
        now, jobs, self._queue_problem = queue
        self._clock_ahead_s = now - time.time()
        if not self._queue_problem:
            rows = [(job.job_id, job.state.value, job.reason, job.nodes) for job in jobs]
            self._jobs = worker_jobs(ids, rows)


def worker_jobs(
    groups: dict[str, list[str]], rows: Iterable[tuple[str, str, str, str]]
) -> list[WorkerJob]:
    """Return the workers of groups, in their order. Pure.

    Args:
        groups: Group → the ids of its jobs: one of an array, or one for each worker.
        rows: Of the queue: job id, state, reason, nodes. Slurm has one row for all workers of an
            array that wait, such as `41_[2-5]`.
    """
    known: dict[str, list[WorkerJob]] = {}
    for job_id, state, reason, nodes in rows:
        reason = "" if reason == "None" else reason
        base, numbers = _numbers(job_id)
        known.setdefault(base, []).extend(
            WorkerJob("" if number is None else str(number), job_id, state, reason, nodes)
            for number in numbers
        )
    found = []
    for group, ids in sorted(groups.items(), key=lambda item: natural(item[0])):
        for place, job_id in enumerate(ids):
            jobs = known.get(job_id) or [WorkerJob("" if len(ids) > 1 else "*", job_id, ENDED)]
            for job in sorted(jobs, key=lambda job: natural(job.name)):
                name = f"{group}.{job.name or place}"
                found.append(WorkerJob(name, job.job_id, job.state, job.reason, job.nodes))
    return found


def _numbers(job_id: str) -> tuple[str, list[int | None]]:
    """Return the id of an array, and the numbers of the workers that a row is of."""
    match = _ARRAY.fullmatch(job_id)
    if match is None:
        return job_id, [None]
    if match[2] is not None:
        return match[1], [int(match[2])]
    found: list[int | None] = []
    for part in match[3].partition("%")[0].split(","):
        first, _, last = part.partition("-")
        last, _, step = last.partition(":")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return match[1], found


def _no_search(record: Record) -> RecordError:
    if record.is_search:
        return RecordError(f"{record.job_dir}/{names.SPEC} is gone from the site",
                           hint=f"dlctl status {record.training_id}")  # fmt: skip
    return RecordError(f"{record.training_id} is a training, and no search",
                       hint=f"dlctl show {record.training_id}")  # fmt: skip


def _spec(record: Record, content: bytes) -> names.Spec:
    try:
        return contract.from_json(names.Spec, content)
    except contract.ContractError as error:
        raise RecordError(f"{record.job_dir}/{names.SPEC} can't be understood: {error}",
                          hint="it may come from another version of dlctl; use that version"
                          ) from error  # fmt: skip


def _brokers(files: dict[str, bytes]) -> list[names.BrokerStatus]:
    texts = [content for name, content in sorted(files.items()) if _BROKER_FILE.fullmatch(name)]
    found = [contract.understood(names.BrokerStatus, text) for text in texts]
    return [broker for broker in found if broker]


def _hub(content: bytes) -> dict[str, Any]:
    """Return what the hub's file says of workers."""
    try:
        return json.loads(content or b"{}").get("workers") or {}
    except ValueError:
        return {}


def read_overview(session: Session, record: Record) -> Overview:
    """Return everything that is known of a search now.

    Raises:
        RecordError: the training is no search, or its files are damaged.
        TransportError
    """
    reader = SearchReader(record)
    reader.refresh(session, record)
    return reader.overview
