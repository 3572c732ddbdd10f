"""Ask a site about trainings, and record the answers."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Iterable
from dataclasses import replace

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.ground.safe_text import lines_of
from dlctl.contract.programs import last_words
from dlctl.contract.programs.verdict_rules import without_checkpoint
from dlctl.errors import (
    RecordError,
    SchedulerError,
    SchedulerUnavailable,
    SubmitUnknown,
    TransferError,
    TransportError,
)
from dlctl.files.made import look_at_made
from dlctl.files.small_files import (
    read_clock_and_texts,
    read_texts,
    read_texts_after,
)
from dlctl.lifecycle import notices
from dlctl.lifecycle.continuation import go_on, is_due, newest
from dlctl.lifecycle.observation import Observation
from dlctl.lifecycle.observe import derive, observe, paths_to_read
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.waiting import QueuePace, is_proven, keep_files
from dlctl.record import Record, RecordStore
from dlctl.request.attempts import read_all, read_newest
from dlctl.scheduler.base import Job
from dlctl.transport.resident import ask

_OPEN = "its job has ended; the next dlctl command that looks at it says whether it goes on"


def refresh(
    session: Session, records: Iterable[Record], store: RecordStore, pace: QueuePace | None = None
) -> list[Record]:
    """Return the records as the site knows them now, with one query for all, or a few more.

    Args:
        session: Of the site.
        records: What is asked about.
        store: Where changes are kept.
        pace: Says when the queue is asked, too; None: now. Without the queue a record stays as it
            is unless the training's files prove its state.

    Raises:
        TransportError: the site can't be reached (`stale` turns that into a state).
    """
    given = list(records)
    if not given:
        return []
    if pace is None or (proven := _look_at_files(session, given, pace)) is None:
        known, seen = _look(session, given)
    else:
        known, seen = proven
    due = [r for r in known if r.training_id in seen and is_due(r, seen[r.training_id])]
    problems = {r.training_id: why for r in due if (why := go_on(session, r, seen[r.training_id]))}
    if due:  # what follows may have begun
        known, seen = _look(session, known)
        known = [
            replace(record, reason=f"{record.reason} ({problems[record.training_id]})")
            if record.training_id in problems else record for record in known
        ]  # fmt: skip
    known = [notices.due(old, new) for old, new in zip(given, known, strict=True)]
    if changed := [new for old, new in zip(given, known, strict=True) if new != old]:
        store.update(*changed)
    if told := {record.training_id: record for record in notices.tell(session, known)}:
        store.update(*told.values())
        known = [told.get(record.training_id, record) for record in known]
    if pace is None or pace.renews():
        keep_files(session, known)
    return known


def _look_at_files(
    session: Session, given: list[Record], pace: QueuePace
) -> tuple[list[Record], dict[str, Observation]] | None:
    """Return what `_look` returns, where the files prove it; None if the queue is to be asked."""
    now, files = read_clock_and_texts(session.transport, _paths(given))
    seen = {record.training_id: observe(record, files, now) for record in given}
    if pace.asks(given, seen):
        return None
    proven = {
        record.training_id: replace(seen[record.training_id], queue_answered=False)
        for record in given if is_proven(record, seen[record.training_id])
    }  # fmt: skip
    known = [
        with_made(session, _settle(session, record, proven[record.training_id]))
        if record.training_id in proven else record for record in given
    ]  # fmt: skip
    return known, proven


def _look(session: Session, given: list[Record]) -> tuple[list[Record], dict[str, Observation]]:
    """Return the records as the site knows them now, and what it has shown about each."""
    # The queue comes before the files: a verdict precedes the job's end.
    end, files = read_texts_after(session.transport, queue_script(session), _paths(given))
    session.queue = queue = parse_queue(session, end.exit_code, end.text, end.error_text)
    asked, files = _at_newest(session, given, files)
    seen = _observations(session, asked, files, queue)
    _add_history(session, asked, seen)
    known = [_settle(session, record, seen[record.training_id]) for record in asked]
    known = _explain(session, known, seen)
    ran = [bool(seen[record.training_id].claim) for record in known]
    return [with_made(session, each) if each_ran else each
            for each, each_ran in zip(known, ran, strict=True)], seen  # fmt: skip


def _at_newest(
    session: Session, records: list[Record], files: dict[str, bytes | None]
) -> tuple[list[Record], dict[str, bytes | None]]:
    """Return the records at the newest attempt that anybody has begun, and their files."""
    begun = [r for r in records if files[f"{r.job_dir}/{contract.submit_begin(r.attempt + 1)}"]]
    moved = newest(session, begun)
    if moved:
        files = files | read_texts(session.transport, _paths(moved.values()))
    return [moved.get(record.training_id, record) for record in records], files


def _paths(records: Iterable[Record]) -> list[str]:
    return [path for record in records for path in paths_to_read(record)]


def _settle(session: Session, record: Record, look: Observation) -> Record:
    """Derive the state; also read an answer that a killed dlctl has not read."""
    if not record.job_id and look.answer and not look.claim and not look.job:
        try:
            record = replace(record, job_id=session.scheduler.parse_submit(*look.answer))
        except SubmitUnknown:
            pass
        except SchedulerError as refusal:
            return replace(record, state=State.FAILED, hint=refusal.hint, stale_since=None,
                           reason=f"the scheduler refused it: {refusal.message}",
                           seen_at=time.time())  # fmt: skip
    return derive(record, look, time.time())


def read_queue(session: Session) -> tuple[float, list[Job], str]:
    """Return the site's clock, the jobs, and why the scheduler did not answer ("" if it did)."""
    end = ask(session.transport, queue_script(session), timeout_s=90.0)
    session.queue = parse_queue(session, end.exit_code, end.text, end.error_text)
    return session.queue


def queue_script(session: Session) -> str:
    """Return the script that asks a site for its clock and its queue."""
    return f"date +%s\n{session.scheduler.queue_script(session.site.root)}"


def parse_queue(
    session: Session, exit_code: int, text: str, errors: str
) -> tuple[float, list[Job], str]:
    """Return what the answer to `queue_script` says, as `read_queue` does."""
    clock, _, rows = text.partition("\n")
    now = float(clock) if clock.isdecimal() else time.time()
    try:
        return now, session.scheduler.parse_queue(exit_code, rows, errors), ""
    except SchedulerUnavailable as silence:
        return now, [], silence.message


def judge(
    session: Session, records: Iterable[Record], files: dict[str, bytes | None],
    queue: tuple[float, list[Job], str],
) -> list[Record]:  # fmt: skip
    """Return the records as their files and the queue show them; the site is not asked.

    A training whose job has ended, and that this dlctl would have to continue, has not ended yet.

    Args:
        files: What `paths_to_read` names.
        queue: What `parse_queue` returns.
    """
    seen = _observations(session, records := list(records), files, queue)
    known = [_settle(session, record, seen[record.training_id]) for record in records]
    return [
        replace(record, state=State.QUEUED, reason=_OPEN, hint=record.show_command)
        if is_due(record, seen[record.training_id]) else record for record in known
    ]  # fmt: skip


def _observations(
    session: Session, records: list[Record], files: dict[str, bytes | None],
    queue: tuple[float, list[Job], str],
) -> dict[str, Observation]:  # fmt: skip
    now, listed, problem = queue
    longest = {name: each.max_time_s for name, each in session.site.partitions.items()}
    jobs = _JobsByName(listed)
    seen = {}
    for record in records:
        look = observe(record, files, now)
        job = jobs.find(record, look)
        seen[record.training_id] = replace(
            look, job=job, successor=jobs.successor(record),
            queue_answered=not problem, queue_problem=problem,
            longest_s=longest.get(job.partition) if job else None,
        )  # fmt: skip
    return seen


class _JobsByName:
    """The queue's jobs by token and by id: with a loop for each record, 1,000 take a second."""

    def __init__(self, jobs: list[Job]) -> None:
        self._by_token: dict[str, list[Job]] = {}
        self._by_id: dict[str, list[Job]] = {}
        for job in jobs:
            for token in {job.name, job.comment.removeprefix("dlctl:")}:
                self._by_token.setdefault(token, []).append(job)
            self._by_id.setdefault(job.job_id, []).append(job)

    def find(self, record: Record, look: Observation) -> Job | None:
        """Return the job of the record's attempt, the one that lives rather than one that ended."""
        mine = list(self._by_token.get(contract.token(record.training_id, record.attempt), []))
        # Later attempts may run in an earlier one's job. The scheduler may reuse an id: a job of
        # another training is never ours.
        ours = f"dlctl:{record.training_id}."
        for job_id in {look.claim, record.job_id} - {""}:
            mine += [
                job for job in self._by_id.get(job_id, [])
                if not job.comment.startswith("dlctl:") or job.comment.startswith(ours)
            ]  # fmt: skip
        return max(
            mine, key=lambda job: (not job.state.final, len(job.job_id), job.job_id), default=None
        )

    def successor(self, record: Record) -> Job | None:
        """Return the first of the jobs that were submitted beforehand and have not ended."""
        token = contract.token(record.training_id, contract.SUCCESSOR)
        waiting = [job for job in self._by_token.get(token, []) if not job.state.final]
        return min(waiting, key=lambda job: (len(job.job_id), job.job_id), default=None)


def _add_history(session: Session, records: list[Record], seen: dict[str, Observation]) -> None:
    """Ask the accounting about jobs that have no verdict and are not in the queue."""
    lost = {
        record.training_id: look.claim or record.job_id
        for record in records
        if not (look := seen[record.training_id]).verdict and not look.job and look.queue_answered
    }
    lost = {training_id: job_id for training_id, job_id in lost.items() if job_id}
    script = session.scheduler.history_script(sorted(lost.values())) if lost else None
    if script is None:
        return
    end = ask(session.transport, script, timeout_s=90.0)
    jobs = session.scheduler.parse_history(
        end.exit_code, end.text, end.stderr.decode(errors="replace")
    )
    by_id = {job.job_id: job for job in jobs}
    for training_id, job_id in lost.items():
        seen[training_id] = replace(seen[training_id], history=by_id.get(job_id))


def _explain(session: Session, records: list[Record], seen: dict[str, Observation]) -> list[Record]:
    """Explain from their last output why jobs without a verdict failed."""
    unclear = [
        record for record in records
        if record.state is State.FAILED and (look := seen[record.training_id]).exists
        and not look.verdict
    ]  # fmt: skip
    explained = {}
    for record, lines in zip(unclear, last_lines(session, unclear), strict=False):
        if told := last_words.explain(lines, record.training_id, record.site):
            explained[record.training_id] = replace(record, reason=told.reason, hint=told.hint)
    return [explained.get(record.training_id, record) for record in records]


def with_made(session: Session, record: Record) -> Record:
    """Return the record of a training whose job has ended with what it has made, if not known.

    Raises:
        TransportError
    """
    has_ended = record.state.final or record.reason == _OPEN
    if record.made is not None or record.is_gone or not has_ended:
        return record
    with contextlib.suppress(TransferError):
        made, _ = look_at_made(session.transport, record.job_dir)
        hint = record.hint if made.checkpoints.files else without_checkpoint(record.hint)
        return replace(record, made=made, hint=hint)
    return record


def last_lines(session: Session, records: list[Record]) -> list[list[str]]:
    """Return the last lines of each job's output."""
    if not records:
        return []
    paths = [f"{record.job_dir}/{contract.job_output(record.attempt)}" for record in records]
    names = " ".join(shlex.quote(path) for path in paths)
    mark = f"<{secrets.token_hex(16)}>"
    tail = f"tail -n {last_words.LINES} \"$f\" 2>/dev/null; printf '%s' '{mark}'"
    end = ask(session.transport, f"for f in {names}; do {tail}; done", timeout_s=90.0)
    return [lines_of(text) for text in end.text.split(mark)[: len(records)]]


def check_learner(session: Session, record: Record, learner: int | None) -> None:
    """Raise a RecordError if the training has no learner of this rank."""
    if learner is None or learner == 0:
        return
    plans = [files.plan for files in read_all(session.transport, record)]
    learners = max(plan.resources.learners for plan in plans)
    if learner >= learners:
        raise RecordError(
            f"{record.training_id} has no learner {learner}",
            hint=f"its learners are 0 to {learners - 1}" if learners > 1 else "it has learner 0",
        )


def read_script(session: Session, record: Record) -> str:
    """Return the newest attempt's batch script.

    Raises:
        RecordError: the job directory is gone.
    """
    return read_newest(session.transport, record).script.decode()


def stale(records: list[Record], error: TransportError, store: RecordStore) -> list[Record]:
    """Return the last known records of a site that can't be reached, marked as stale."""
    known = [replace(r, stale_since=r.stale_since or time.time()) for r in records]
    store.update(*known)
    return [replace(r, reason=f"{r.reason} [{error.message}]".strip()) for r in known]


def read_plan(session: Session, record: Record) -> contract.Plan:
    """Return the newest attempt's plan.

    Raises:
        RecordError: the job directory is gone.
    """
    return read_newest(session.transport, record).plan


def learner_statuses(
    session: Session, record: Record, plan: contract.Plan
) -> list[contract.Status]:
    """Return what each learner of the newest attempt last wrote about itself, by rank."""
    names = [
        contract.status_file(record.attempt, "learner", rank)
        for rank in range(plan.resources.learners)
    ]
    paths = [f"{record.job_dir}/{name}" for name in names]
    found = read_texts(session.transport, paths)
    known = (contract.understood(contract.Status, found[path]) for path in paths)
    return [status for status in known if status is not None]
