"""Derive a training's state from its files and the scheduler's answers, never by guessing. Pure.

The files come first (they say why), then the queue, then the accounting, which may be absent.
A site that does not answer makes a state stale, never FAILED. An unknown Slurm state is never taken
for an end.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from dataclasses import dataclass, replace

from dlctl import contract
from dlctl.contract import State, Status, Verdict
from dlctl.contract.metrics import DONE, LOSS
from dlctl.contract.programs.verdict_rules import NEWEST
from dlctl.record import GONE, Record
from dlctl.scheduler.base import Job, JobState
from dlctl.scheduler.reasons import why_it_waits
from dlctl.units import format_duration, unix_seconds

PATIENCE_S = 60.0
"""How long a node may take to begin the attempt that it has announced."""
QUIET_S = 300.0
"""A program that has shown nothing for so long may hang."""


@dataclass(frozen=True)
class Observation:
    """One training as one query of the site has shown it."""

    now: float
    """The site's clock, Unix seconds."""
    begun: bool = False
    """The receipt exists, which is written before the scheduler is asked."""
    answer: tuple[int, str, str] | None = None
    """The scheduler's answer to the submission: exit code, standard output, standard error."""
    claim: str = ""
    """The job id that the job script wrote."""
    fenced: bool = False
    """dlctl itself has claimed the attempt: no job will ever run it."""
    supervisor: Status | None = None
    ran_before_s: float = 0.0
    """How long the attempts ran that the record has not counted yet, up to `ran_through`."""
    ran_through: int = 0
    learner: Status | None = None
    """Learner 0's."""
    epochs: int = 0
    """The plan's epochs; 0 if the training's own program decides."""
    verdict: Verdict | None = None
    cancel_asked: bool = False
    halt_asked: bool = False
    next_begun: bool = False
    """The next attempt has begun: this one counts no more."""
    goes_on: bool | None = None
    """The plan says that the site's jobs, or dlctl, go on by themselves after a fault; None as long
    as nobody has read a plan."""
    exists: bool = True
    """The job directory holds any of the files that are read: a purge may leave some."""
    job: Job | None = None
    """The newest attempt's job in the queue."""
    history: Job | None = None
    """The same job in the accounting."""
    longest_s: int | None = None
    """The longest time of the job's partition, as the site's file knows it."""
    queue_answered: bool = True
    queue_problem: str = ""

    @property
    def awaited(self) -> Job | None:
        """Return the job in the queue that is to start the next attempt."""
        return self.job if self.is_requeued and self.job and not self.job.state.final else None

    @property
    def is_requeued(self) -> bool:
        """Return whether the job of this attempt is to start the next one, too."""
        action = self.verdict.action if self.verdict else None
        return action is not None and action.starter == contract.StarterKind.REQUEUE

    @property
    def is_withdrawn(self) -> bool:
        """Return whether a person has cancelled the job that was to start the next attempt."""
        job = self.job or self.history
        return self.is_requeued and job is not None and job.state is JobState.CANCELLED


def is_due(record: Record, observation: Observation) -> bool:
    """Return whether the login side has to see to the next attempt: nobody else does."""
    if observation.next_begun or observation.cancel_asked or observation.halt_asked:
        return False
    if not observation.exists or observation.awaited or observation.is_withdrawn:
        return False
    verdict = observation.verdict
    if verdict and verdict.action is None:  # of a node that outlived the supervisor's
        return bool(observation.goes_on) and verdict.state in (State.FAILED, State.HALTED)
    if verdict and (action := verdict.action):
        patience_s = 0.0 if action.starter == contract.StarterKind.CLIENT else PATIENCE_S
        return action.goes_on and observation.now >= action.not_before + patience_s
    # A job that ended without a word: its supervisor was killed, or its first node was lost.
    return (
        verdict is None and record.state in (State.FAILED, State.HALTED)
        and bool(observation.claim) and bool(observation.goes_on)
    )  # fmt: skip


class JobsByName:
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


FRESH_S = 60.0
"""A heartbeat younger than this proves that the job lives."""
LOST_S = 300.0
"""After this long without a heartbeat, a running job has probably lost its first node."""
_LATE_S = 5.0
"""How much longer than its interval a heartbeat may take to be seen."""
_SAME_CLOCK_S = 10.0
"""By so much two comparisons of the same clocks may differ."""
JOB_HAS_ENDED = "its job has ended"
"""The beginning of a reason while it is not yet known how."""
SETTLE_S = 30.0
"""The longest delay of a shared file system; only then does a missing file mean anything."""
WAITING = "waiting in the queue"
"""The beginning of a reason while a job waits."""
INTERRUPTED = "the submission was interrupted: "
"""What a record's reason begins with before the words of what interrupted a submission."""
_NOTHING_SENT = f"{INTERRUPTED}nothing was sent"


def parse_answer(content: bytes | None) -> tuple[int, str, str] | None:
    """Return exit code, standard output and standard error of `contract.submit_answer`."""
    try:
        code, length, rest = (content or b"").split(b"\n", 2)
        size_bytes, _ = int(length), int(code)
    except ValueError:
        return None  # an incomplete file counts as lost
    out, err = rest[:size_bytes], rest[size_bytes:]
    return int(code), out.decode(errors="replace"), err.decode(errors="replace")


def paths_to_read(record: Record) -> list[str]:
    """Return the files of the job directory that `observe` needs."""
    return [*paths_of_newest(record), *_paths_of_earlier(record)]


def _paths_of_earlier(record: Record) -> list[str]:
    """Return the files that say how long attempts ran; each is read once."""
    return [f"{record.job_dir}/{contract.status_file(k, 'supervisor', 0)}"
            for k in range(record.ran_through + 1, record.attempt)]  # fmt: skip


def paths_of_newest(record: Record) -> list[str]:
    """Return the files that show the newest attempt, in a fixed order.

    The plan, which is the largest of them and never changes, is read until it is known and the
    attempt has a job. From then on other files show that the job directory is there.
    """
    n = record.attempt
    known = [contract.PLAN] if _reads_plan(record) else []
    names = [
        *known, contract.submit_begin(n), contract.submit_answer(n), contract.claim(n),
        contract.status_file(n, "supervisor", 0), contract.verdict_file(n),
        contract.CANCEL_REQUEST, contract.HALT_REQUEST, contract.status_file(n, "learner", 0),
        contract.submit_begin(n + 1),
    ]  # fmt: skip
    return [f"{record.job_dir}/{name}" for name in names]


def _reads_plan(record: Record) -> bool:
    return record.goes_on is None or not record.job_id


def observe(record: Record, files: dict[str, bytes | None], now: float) -> Observation:
    """Return what the files say; `refresh` adds what the scheduler says."""
    contents = [files[path] for path in paths_of_newest(record)]
    if not _reads_plan(record):
        contents.insert(0, None)
    plan, begin, answer, claim, status, verdict, cancel, halt, learner, following = contents
    earlier = [files[path] for path in _paths_of_earlier(record) if path in files]
    before = [known for text in earlier if (known := contract.understood(Status, text))]
    owner = (claim or b"").decode(errors="replace").strip()
    return Observation(
        now=now,
        begun=begin is not None,
        answer=parse_answer(answer),
        claim="" if owner == contract.NOBODY else owner,
        fenced=owner == contract.NOBODY,
        supervisor=contract.understood(Status, status),
        ran_before_s=sum(max(0.0, each.heartbeat_at - each.started_at) for each in before),
        ran_through=record.ran_through + len(earlier),
        learner=contract.understood(Status, learner),
        epochs=record.epochs or _epochs(plan),
        next_begun=following is not None,
        goes_on=record.goes_on if plan is None else _continues(plan),
        verdict=contract.understood(Verdict, verdict),
        cancel_asked=cancel is not None,
        halt_asked=halt is not None,
        exists=any(content is not None for content in contents),
    )


def _epochs(plan: bytes | None) -> int:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        fields = json.loads(plan or b"")
        return int(fields["training"]["epochs"]) if fields["framework"]["job"] else 0
    return 0


def _continues(plan: bytes | None) -> bool:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return json.loads(plan or b"").get("lifecycle") is not None
    return False


def derive(record: Record, observation: Observation, wall_s: float) -> Record:
    """Return the record as it is known now.

    Args:
        wall_s: this machine's clock, for `seen_at` and `stale_since`.
    """
    job_id = (observation.job and observation.job.job_id) or observation.claim or record.job_id
    known = replace(_progress(record, observation, wall_s), job_id=job_id)
    known = _state(known, observation, wall_s)
    if known.state.final and not known.ended_at and observation.supervisor:
        known = replace(known, ended_at=observation.supervisor.heartbeat_at)
    return known


def _clock_ahead_s(record: Record, observation: Observation, wall_s: float) -> float:
    """Return how much this machine's clock is ahead of the site's, if that is much.

    Answers take a moment: about the same as before is the same, as a record that has changed is
    written.
    """
    ahead_s, before_s = wall_s - observation.now, record.clock_ahead_s
    if before_s and abs(ahead_s - before_s) < _SAME_CLOCK_S:
        return before_s
    return ahead_s if abs(ahead_s) > FRESH_S else 0.0


def _ends_at(record: Record, status: Status, ahead_s: float) -> float:
    """Return when a learner will be done that goes on like this, from its beginning."""
    ran_s, done = status.heartbeat_at - status.started_at, status.done or 0.0
    if record.attempt != 1 or ran_s <= 0 or not 0 < done < 1:
        return 0.0
    return status.heartbeat_at + ran_s * (1 - done) / done + ahead_s


def _progress(record: Record, observation: Observation, wall_s: float) -> Record:
    """Return the record with how far learner 0 has come; what is not known now stays as it was."""
    if not observation.exists:
        return record
    ahead_s = _clock_ahead_s(record, observation, wall_s)
    verdict, supervisor = observation.verdict, observation.supervisor
    record = replace(
        record, epochs=observation.epochs, goes_on=observation.goes_on,
        ended_at=verdict.finished_at if verdict else 0.0, clock_ahead_s=ahead_s,
        ran_before_s=record.ran_before_s + observation.ran_before_s,
        ran_through=max(record.ran_through, observation.ran_through),
        started_at=supervisor.started_at if supervisor else 0.0,
        moved=None if verdict or not supervisor else supervisor.done,
        made=verdict.made if verdict and verdict.made
        else record.made if record.state.final else None,
    )  # fmt: skip
    # First what the supervisor reads in the log of a program that reports nothing.
    if supervisor:
        told = replace(supervisor, done=supervisor.metrics.get(DONE))
        record = _as_reported(replace(record, ends_at=0.0), told, ahead_s)
    return _as_reported(record, observation.learner, ahead_s)


def _as_reported(record: Record, status: Status | None, ahead_s: float) -> Record:
    """Return the record with the progress of a status, as far as it has any."""
    if status is None:
        return record
    if status.done is not None:
        record = replace(record, done=status.done, ends_at=_ends_at(record, status, ahead_s))
    loss = status.metrics.get(LOSS, record.loss)
    return replace(
        record, loss=math.nan if loss is None and LOSS in status.metrics else loss,
        epoch=record.epoch if status.epoch is None else status.epoch,
        step=record.step if status.step is None else status.step,
    )  # fmt: skip


def _state(known: Record, observation: Observation, wall_s: float) -> Record:
    was_sent = known.job_id or known.attempt > 1
    job, verdict = observation.job, observation.verdict
    if not observation.exists and was_sent and not (job and not job.state.final):
        return _gone(known, observation, wall_s)
    if verdict and verdict.action and verdict.action.goes_on:
        return _between(known, observation, verdict, wall_s)
    if verdict:
        return _in_state(known, wall_s, verdict.state, _why(verdict), verdict.hint)
    if not observation.queue_answered:
        return _without_queue(known, observation, wall_s)
    if job and not job.state.final:
        return _in_queue(known, observation, job, wall_s)
    if _heartbeat_age_s(observation) < FRESH_S and not (job and _age_is_settled(observation)):
        return _running(known, observation, wall_s)
    ended = job or observation.history
    if ended and ended.state.final:
        return _ended(known, observation, ended, wall_s)
    if ended and ended.state is JobState.UNKNOWN:
        return _unknown_word(known, ended, wall_s)
    return _nowhere(known, observation, wall_s)


def _in_state(record: Record, wall_s: float, state: State, reason: str, hint: str = "") -> Record:
    starts_at = record.starts_at if state is State.PENDING else 0.0
    return replace(record, state=state, reason=reason, hint=hint, seen_at=wall_s, stale_since=None,
                   starts_at=starts_at)  # fmt: skip


def _between(record: Record, observation: Observation, verdict: Verdict, wall_s: float) -> Record:
    """Report an attempt that has ended and that another one will follow."""
    action = verdict.action
    if action is None or observation.cancel_asked or observation.halt_asked:
        state = State.CANCELLED if observation.cancel_asked else State.HALTED
        why = f"{state.lower()} after attempt {verdict.attempt}: {_why(verdict)}"
        return _in_state(record, wall_s, state, why, f"dlctl resume {record.training_id}")
    if observation.is_withdrawn:
        why = f"the job that was to start attempt {action.attempt} was cancelled, but not by this "
        why += f"dlctl; attempt {verdict.attempt} ended: {_why(verdict)}"
        return _in_state(record, wall_s, State.CANCELLED, why,
                         f"dlctl resume {record.training_id}")  # fmt: skip
    wait_s = action.not_before - observation.now
    when = f" in {wait_s:.0f} s" if wait_s >= 1 else ""
    ended, hint = f"attempt {verdict.attempt} ended: {_why(verdict)}", ""
    if (waits := observation.awaited) is not None:
        when = f" in job {waits.job_id}"
        if waits.reason:
            known = why_it_waits(waits.reason)
            when += f", which waits in the queue: {known.sentence}"
            hint = known.todo.format(id=record.training_id, job=waits.job_id)
    return _in_state(
        record, wall_s, State.QUEUED,
        f"attempt {action.attempt} starts{when} ({action.why}); {ended}", hint,
    )  # fmt: skip


def _gone(record: Record, observation: Observation, wall_s: float) -> Record:
    """Report that somebody removed the job directory; files left in it prove nothing."""
    if not observation.queue_answered:
        return _without_queue(record, observation, wall_s)
    hint = f"`dlctl fetch results {record.training_id}` brings what may be left of it, "
    hint += f"`dlctl delete {record.training_id}` forgets it"
    if record.state.final and record.state is not State.HALTED:  # how it ended stays true
        reason = record.reason.removesuffix(GONE).rstrip("; .")
        return _in_state(record, wall_s, record.state, f"{reason}; {GONE}".lstrip("; "), hint)
    return _in_state(record, wall_s, State.FAILED, GONE, hint)


def _why(verdict: Verdict) -> str:
    evidence = verdict.evidence
    if not evidence or evidence.role not in ("learner", "server"):
        return verdict.reason
    name = f"{evidence.role} {evidence.rank}"
    named = re.search(rf"\b{name}\b", verdict.reason.lower())
    # A learner that never began has no host.
    where = f" on {evidence.host}" if evidence.host else ""
    return verdict.reason if named else f"{verdict.reason} ({name}{where})"


def _heartbeat_age_s(observation: Observation) -> float:
    supervisor = observation.supervisor
    return observation.now - supervisor.heartbeat_at if supervisor else float("inf")


def _age_is_settled(observation: Observation) -> bool:
    """Return whether the heartbeat has stopped long enough to believe that the job has ended."""
    interval = observation.supervisor.heartbeat_interval_s if observation.supervisor else 0.0
    return _heartbeat_age_s(observation) > interval + _LATE_S


def is_alive(observation: Observation) -> bool:
    """Return whether the supervisor's heartbeat is on time, and tells of no end."""
    status = observation.supervisor
    return status is not None and not status.state.final and not _age_is_settled(observation)


def _without_queue(record: Record, observation: Observation, wall_s: float) -> Record:
    if _heartbeat_age_s(observation) < FRESH_S:
        return _running(record, observation, wall_s)
    why = f"the scheduler does not answer: {observation.queue_problem}"
    return replace(
        record, reason=record.reason if record.state.final else why,
        stale_since=record.stale_since or wall_s,
    )  # fmt: skip


def _in_queue(record: Record, observation: Observation, job: Job, wall_s: float) -> Record:
    if job.state is JobState.PENDING:
        return _waiting(record, observation, job, wall_s)
    if job.state is JobState.UNKNOWN:
        return _unknown_word(record, job, wall_s)
    return _running(record, observation, wall_s, suspended=job.state is JobState.SUSPENDED)


def _waiting(record: Record, observation: Observation, job: Job, wall_s: float) -> Record:
    """Report a job in the queue: why it waits, what to do, and when it is expected to start."""
    starts_at = job.starts_at if job.starts_at > observation.now else 0.0
    record = replace(record, starts_at=starts_at and starts_at + record.clock_ahead_s)
    if job.reason in ("", "None"):
        return _in_state(record, wall_s, State.PENDING, WAITING)
    why = why_it_waits(job.reason)
    todo = why.todo.format(id=record.training_id, job=job.job_id)
    if job.reason == "PartitionTimeLimit" and observation.longest_s:
        todo = todo.replace("LESS", format_duration(observation.longest_s))
    return _in_state(record, wall_s, State.PENDING, f"{WAITING}: {why.sentence}", todo)


def _unknown_word(record: Record, job: Job, wall_s: float) -> Record:
    reason = f"the scheduler reports {job.word!r}, which this version of dlctl does not know"
    return replace(record, reason=reason, seen_at=wall_s, stale_since=None)


def _silence(record: Record, observation: Observation) -> str:
    """Return since when learner 0 has shown nothing, if that is long."""
    status = observation.learner
    if status is None or not status.printed_at or status.state.final:
        return ""
    shown_at = max(status.printed_at, status.progressed_at)
    if observation.now - shown_at < QUIET_S:
        return ""
    here = time.localtime(shown_at + record.clock_ahead_s)
    return f"it has printed nothing since {time.strftime('%H:%M', here)}"


def _running(
    record: Record, observation: Observation, wall_s: float, suspended: bool = False
) -> Record:
    status = observation.supervisor
    if not observation.exists:
        return _in_state(record, wall_s, record.state, f"{GONE}, so the job is ending")
    if status is None:
        reason = "is being cancelled" if observation.cancel_asked else "the job has started"
        return _in_state(record, wall_s, State.DEPLOYING, reason)
    age_s = _heartbeat_age_s(observation)
    state, reason, hint = status.state, status.reason, ""
    if state.final:  # only the verdict tells whether another attempt follows
        state = State.DEPLOYING if record.state in (State.QUEUED, State.PENDING) else record.state
        reason = f"the attempt is ending: {reason}".rstrip(": ")
    elif state is State.TRAINING and not reason:
        reason = _silence(record, observation)
    if suspended:
        reason = "suspended by the scheduler"
    elif age_s > FRESH_S:
        reason = f"no heartbeat for {age_s:.0f} s, but the scheduler says that it is running"
        # With --no-kill a job stays in the queue without its script when its first node is lost.
        if age_s > LOST_S:
            hint = f"dlctl cancel {record.training_id}; dlctl resume {record.training_id}"
    elif observation.job and observation.job.state.final:
        settled_s = status.heartbeat_interval_s + _LATE_S
        reason = (
            f"{JOB_HAS_ENDED}, and the supervisor's heartbeat is {age_s:.0f} s old; once that is "
            f"{settled_s:.0f} s, dlctl says how it ended"
        )
    elif observation.cancel_asked:
        reason = "is being cancelled"
    elif observation.halt_asked:
        saves = "saving a checkpoint" if record.epochs else "its program may save first"
        reason = f"is being halted: {saves}"
        hint = f"Once it is HALTED, continue with: dlctl resume {record.training_id}"
    return _in_state(record, wall_s, state, reason, hint)


_NO_VERDICT = "the job ended without a verdict"
_ENDINGS = {
    JobState.COMPLETED: _NO_VERDICT,
    JobState.FAILED: _NO_VERDICT,
    JobState.TIMEOUT: "the time limit ended the job before it could save",
    JobState.OUT_OF_MEMORY: "the job used more memory than it asked for",
    JobState.NODE_FAIL: "a node was lost",
    JobState.DROPPED: "Slurm itself ended the job, as when its controller has lost its state",
}


def _see_output(record: Record) -> str:
    logs, resume = f"dlctl logs {record.training_id}", f"dlctl resume {record.training_id}"
    return f"`{logs}` shows what it printed; `{resume}` continues {NEWEST}"


def _ended(record: Record, observation: Observation, job: Job, wall_s: float) -> Record:
    go_on = f"continue {NEWEST}: dlctl resume {record.training_id}"
    if end := _requested_end(record, observation, wall_s):
        known = _ENDINGS.get(job.state, "")
        if end.state is State.HALTED and observation.claim and known not in ("", _NO_VERDICT):
            return replace(end, reason=f"{end.reason}: {known}")
        return end
    if job.state is JobState.CANCELLED:
        why = "cancelled, but not by this dlctl"
        return _in_state(record, wall_s, State.CANCELLED, why, go_on if observation.claim else "")
    if job.state is JobState.PREEMPTED:
        why = "the job was preempted before all was saved"
        return _in_state(record, wall_s, State.HALTED, why, go_on)
    detail = f" ({job.word}{', exit code ' + job.exit_code if job.exit_code else ''})"
    return _in_state(
        record, wall_s, State.FAILED, _ENDINGS[job.state] + detail, _see_output(record)
    )


def _requested_end(record: Record, observation: Observation, wall_s: float) -> Record | None:
    """Return the end that the user requested, for a job that ended without a verdict."""
    if observation.cancel_asked:
        before = "" if observation.begun or observation.claim else " before it was submitted"
        return _in_state(record, wall_s, State.CANCELLED, f"cancelled{before}")
    if not observation.halt_asked:
        return None
    why = "halted before it started"
    if observation.claim:
        why = "halted: the job ended before it could save"
    return _in_state(record, wall_s, State.HALTED, why, f"dlctl resume {record.training_id}")


def _nowhere(record: Record, observation: Observation, wall_s: float) -> Record:
    """Judge a job without verdict or heartbeat that the scheduler does not know."""
    end = _requested_end(record, observation, wall_s)
    if end and (observation.fenced or not observation.begun):
        return end
    if not observation.exists and not record.job_id:
        return _in_state(record, wall_s, State.QUEUED, _NOTHING_SENT,
                         f"dlctl resume {record.training_id}")  # fmt: skip
    if not observation.begun and not observation.claim:
        if record.state is State.FAILED:  # it was refused before the scheduler was asked
            return _in_state(record, wall_s, record.state, record.reason, record.hint)
        why = "the submission was interrupted before the scheduler was asked"
        if record.reason.startswith(INTERRUPTED) and record.reason != _NOTHING_SENT:
            why = record.reason
        return _in_state(record, wall_s, State.QUEUED, why, f"dlctl resume {record.training_id}")
    if not record.job_id and not observation.claim:
        return _in_state(
            record, wall_s, State.QUEUED,
            "the scheduler's answer was lost, and no job of this name is known so far; "
            "dlctl does not submit it again by itself",
            f"`dlctl resume {record.training_id}` looks again and submits it if needed",
        )  # fmt: skip
    if end:
        return end
    known_since = max(record.seen_at, unix_seconds(record.created_at) or 0.0)
    if observation.supervisor is None and wall_s - known_since < SETTLE_S:
        return record  # just submitted: the queue may not list it yet
    why = f"job {record.job_id} left the queue without a verdict"
    return _in_state(record, wall_s, State.FAILED, why, _see_output(record))
