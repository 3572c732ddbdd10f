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
from dlctl.contract.programs import verdict_rules
from dlctl.contract.programs.verdict_rules import without_checkpoint
from dlctl.errors import (
    DlctlError,
    RecordError,
    RemoteCommandError,
    SchedulerError,
    SchedulerUnavailable,
    SubmitUnknown,
    TransferError,
    TransportError,
)
from dlctl.files.made import look_at_made
from dlctl.files.small_files import read_clock_and_texts, read_texts, read_texts_after
from dlctl.lifecycle import notices
from dlctl.lifecycle.observe import JobsByName, Observation, derive, is_due, observe, paths_to_read
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.waiting import QueuePace, is_proven, keep_files
from dlctl.record import Record, RecordStore
from dlctl.record.used import keep
from dlctl.request.attempts import read_all, read_newest
from dlctl.scheduler.base import Job
from dlctl.transport.resident import ask

_OPEN = "its job has ended; the next dlctl command that looks at it says whether it goes on"


def refresh(
    session: Session, records: Iterable[Record], store: RecordStore, pace: QueuePace | None = None
) -> list[Record]:
    """Return the records as the site knows them now, with one query for all, or a few more.

    Args:
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
        known, observations = _look(session, given)
    else:
        known, observations = proven
    due = [(r, look) for r in known
           if (look := observations.get(r.training_id)) and is_due(r, look)]  # fmt: skip
    problems = {r.training_id: why for r, look in due if (why := _go_on(session, r, look))}
    if due:  # what follows may have begun
        known, observations = _look(session, known)
        known = [
            replace(record, hint=why.hint or record.hint,
                    reason=f"{record.reason} (it can't be continued from here: {why.message})")
            if (why := problems.get(record.training_id)) else record for record in known
        ]  # fmt: skip
    known = [notices.due(old, new) for old, new in zip(given, known, strict=True)]
    if changed := [new for old, new in zip(given, known, strict=True) if new != old]:
        store.update(*changed)
        looks = (observations.get(new.training_id) for new in changed)
        keep(store, [past for look in looks if look and look.verdict
                     for past in look.verdict.pasts])  # fmt: skip
    if notified := {record.training_id: record for record in notices.tell(session, known)}:
        store.update(*notified.values())
        known = [notified.get(record.training_id, record) for record in known]
    if pace is None or pace.renews():
        keep_files(session, known)
    return known


def _look_at_files(
    session: Session, given: list[Record], pace: QueuePace
) -> tuple[list[Record], dict[str, Observation]] | None:
    """Return what `_look` returns, where the files prove it; None if the queue is to be asked."""
    now, files = read_clock_and_texts(session.transport, _paths(given))
    observations = {record.training_id: observe(record, files, now) for record in given}
    if pace.asks(given, observations):
        return None
    proven = {
        record.training_id: replace(observations[record.training_id], queue_answered=False)
        for record in given if is_proven(record, observations[record.training_id])
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
    records, files = _at_newest(session, given, files)
    observations = _observations(session, records, files, queue)
    _add_history(session, records, observations)
    known = [_settle(session, record, observations[record.training_id]) for record in records]
    known = _explain(session, known, observations)
    ran = [bool(observations[record.training_id].claim) for record in known]
    return [with_made(session, each) if each_ran else each
            for each, each_ran in zip(known, ran, strict=True)], observations  # fmt: skip


def _at_newest(
    session: Session, records: list[Record], files: dict[str, bytes | None]
) -> tuple[list[Record], dict[str, bytes | None]]:
    """Return the records at the newest attempt that anybody has begun, and their files."""
    begun = [r for r in records if files[f"{r.job_dir}/{contract.submit_begin(r.attempt + 1)}"]]
    moved = _newest(session, begun)
    if moved:
        files = files | read_texts(session.transport, _paths(moved.values()))
    return [moved.get(record.training_id, record) for record in records], files


def _newest(session: Session, records: list[Record]) -> dict[str, Record]:
    """Return the records of trainings whose next attempt has begun, at their newest attempt."""
    if not records:
        return {}
    folders = " ".join(shlex.quote(record.job_dir) for record in records)
    receipt = shlex.quote(contract.submit_begin("[0-9]*")).replace("'", "")
    script = (
        f'for d in {folders}; do (cd "$d" 2>/dev/null && for f in {receipt}; do echo "$f"; done)\n'
        "printf '\\036'; done"
    )
    answers = session.transport.run(script, timeout_s=90.0).text.split("\036")
    known = {}
    for record, text in zip(records, answers, strict=False):
        numbers = [word.split("/")[1] for word in text.split() if word.count("/") >= 2]
        attempt = max((int(n) for n in numbers if n.isdecimal()), default=record.attempt)
        known[record.training_id] = replace(
            record, attempt=max(attempt, record.attempt), job_id="", state=State.QUEUED,
            reason="", hint="", ended_at=0.0,
        )  # fmt: skip
    return known


def _go_on(session: Session, record: Record, observation: Observation) -> DlctlError | None:
    """Judge an attempt that nobody else judges, and begin the next if one follows.

    The decision is the node side's alone (`learner.lifecycle`): the same program runs where the
    transport's shell runs, and is told what the scheduler says of the end.

    Returns what kept the site's login node from that; None if it did it.
    """
    job = observation.history or observation.job
    word = job.state.value if job else ""
    try:
        plan = read_newest(session.transport, record).plan
        arguments = [record.job_dir, str(record.attempt), word, job.reason if job else ""]
        if plan.environment.container:  # in which there are no commands of Slurm
            plan = replace(plan, environment=replace(plan.environment, container=[], python=""))
        run_module(session, plan, "learner.supervisor.takeover", arguments, timeout_s=300.0)
    except DlctlError as error:
        if isinstance(error, TransportError) and not isinstance(error, RemoteCommandError):
            raise  # the site can't be reached, which says nothing about the training
        return error
    return None


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
    observations = _observations(session, records := list(records), files, queue)
    known = [_settle(session, record, observations[record.training_id]) for record in records]
    return [
        replace(record, state=State.QUEUED, reason=_OPEN, hint=record.show_command)
        if is_due(record, observations[record.training_id]) else record for record in known
    ]  # fmt: skip


def _observations(
    session: Session, records: list[Record], files: dict[str, bytes | None],
    queue: tuple[float, list[Job], str],
) -> dict[str, Observation]:  # fmt: skip
    now, listed, problem = queue
    longest = {name: each.max_time_s for name, each in session.site.partitions.items()}
    jobs = JobsByName(listed)
    observations = {}
    for record in records:
        look = observe(record, files, now)
        job = jobs.find(record, look)
        observations[record.training_id] = replace(
            look, job=job, queue_answered=not problem, queue_problem=problem,
            longest_s=longest.get(job.partition) if job else None,
        )  # fmt: skip
    return observations


def _add_history(
    session: Session, records: list[Record], observations: dict[str, Observation]
) -> None:
    """Ask the accounting about jobs that are not in the queue, though they should be.

    They have no verdict, or were to start the next attempt.
    """
    lost = {
        record.training_id: look.claim or record.job_id
        for record in records
        if (not (look := observations[record.training_id]).verdict or look.is_requeued)
        and not look.job and look.queue_answered
    }  # fmt: skip
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
        observations[training_id] = replace(observations[training_id], history=by_id.get(job_id))


def _explain(
    session: Session, records: list[Record], observations: dict[str, Observation]
) -> list[Record]:
    """Explain from their last output why jobs without a verdict failed."""
    unclear = [
        record for record in records
        if record.state is State.FAILED and (look := observations[record.training_id]).exists
        and not look.verdict
    ]  # fmt: skip
    explained = {}
    for record, lines in zip(unclear, last_lines(session, unclear), strict=False):
        if not verdict_rules.first_match(verdict_rules.Place.JOB, lines):
            continue
        if cause := verdict_rules.explain(lines, read_plan(session, record)):
            explained[record.training_id] = replace(record, reason=cause.reason, hint=cause.hint)
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
    tail = f"tail -n {verdict_rules.JOB_LINES} \"$f\" 2>/dev/null; printf '%s' '{mark}'"
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
    ranks = range(plan.resources.learners)
    names = [contract.status_file(record.attempt, "learner", rank) for rank in ranks]
    paths = [f"{record.job_dir}/{name}" for name in [contract.rulings_file(record.attempt), *names]]
    found = read_texts(session.transport, paths)
    ruled = contract.understood(contract.Rulings, found[paths[0]]) or contract.Rulings()
    own = [contract.understood(contract.Status, found[path]) for path in paths[1:]]
    known = [ruled.on("learner", rank, status) for rank, status in zip(ranks, own, strict=True)]
    return closed_statuses(record, [status for status in known if status is not None])


def closed_statuses(
    record: Record, statuses: list[contract.Status], verdict: contract.Verdict | None = None
) -> list[contract.Status]:
    """Return the statuses of an attempt's processes; none is at work once it has ended.

    A process that was killed with its watchdog, and maybe with its supervisor, can't say so.
    """
    if not record.state.final and verdict is None:
        return statuses
    state, evidence = (verdict.state, verdict.evidence) if verdict else (record.state, None)
    if evidence and evidence.role:
        blamed = [(evidence.role, evidence.rank)]
    else:  # nobody is to blame, except of one the only one
        blamed = [("learner", each.rank) for each in statuses if len(statuses) == 1]
    return [
        each.closed(failed=state is State.FAILED and (each.role, each.rank) in blamed)
        for each in statuses
    ]
