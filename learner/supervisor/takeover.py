"""Take over from a killed supervisor: `python -m learner.supervisor.takeover DIR ATTEMPT STATE`.

For an attempt whose supervisor was killed, or that announced a next attempt and did not begin it:
write the verdict from what is left, decide what follows, and begin it. Runs where jobs can be
submitted, after the scheduler has reported the end of the job.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from dlctl import contract
from dlctl.contract import (
    Evidence,
    Plan,
    StarterKind,
    State,
    Status,
    Verdict,
    VerdictKind,
    to_json,
)
from dlctl.contract.ground.safe_text import printable
from dlctl.contract.programs import answers
from dlctl.contract.programs.advice import more_memory
from dlctl.contract.programs.slurm_words import DROPPED
from dlctl.contract.programs.verdict_rules import explain
from learner.job.batch import batch_system
from learner.job.context import job_id, plan_left
from learner.job.directives import is_there
from learner.job.metrics import tell
from learner.job.outcome import Outcome, failed, last_verdict
from learner.job.status import last_lines, write_patiently
from learner.lifecycle.manager import conclude, follow
from learner.lifecycle.starters import run_here
from learner.supervisor.explanation import go_on
from learner.supervisor.finish import say
from learner.supervisor.statuses import Observed, Statuses
from learner.supervisor.steps import step_log
from learner.supervisor.verdict import decide

_ENDINGS = {
    "NODE_FAIL": (VerdictKind.NODE_LOST, "A node of the job was lost."),
    "TIMEOUT": (VerdictKind.TIME_LIMIT, "The time limit ended the job before it could save."),
    "PREEMPTED": (VerdictKind.PREEMPTED, "The job was preempted before all was saved."),
    "OUT_OF_MEMORY": (
        VerdictKind.OUT_OF_MEMORY, "The job used more memory than it asked for.",
    ),
    DROPPED: (
        VerdictKind.SCHEDULER,
        "Slurm itself ended the job, as when its controller has lost its state.",
    ),
    "CANCELLED": (VerdictKind.CANCELLED, "The job was cancelled, but not by dlctl."),
}  # fmt: skip
"""The meaning of the scheduler's last word about a job that ended without a verdict."""


def judge(job_dir: Path, plan: Plan, attempt: int, word: str) -> Verdict:
    """Return the verdict on an attempt whose supervisor left none."""
    outcome = (
        _by_the_scheduler(plan, word, sure=True)
        or _by_the_output(job_dir, plan, attempt)
        or _by_the_scheduler(plan, word)
        or _by_the_learners(job_dir, plan, attempt)
    )
    outcome = _with_lost_node(job_dir, plan, attempt, outcome)
    outcome = _as_requested(plan, job_dir, outcome)
    evidence = replace(outcome.evidence or Evidence(), scheduler_state=word)
    verdict = last_verdict(job_dir, attempt, replace(outcome, evidence=evidence), plan)
    heard_at = [status.heartbeat_at for status in _statuses(job_dir, plan, attempt)]
    # Somebody may look days after the end.
    return replace(verdict, finished_at=min(verdict.finished_at, max(heard_at, default=math.inf)))


def _statuses(job_dir: Path, plan: Plan, attempt: int) -> list[Status]:
    """Return the newest words of the supervisor and the learners."""
    known = Statuses(job_dir, attempt)
    found = [known.read("supervisor", 0), *known.learners(plan.resources.learners)]
    return [status for status in found if status is not None]


def _as_requested(plan: Plan, job_dir: Path, outcome: Outcome) -> Outcome:
    """Return the end that a person has asked for, if somebody has; how it came is its reason."""
    how = outcome.reason[:1].lower() + outcome.reason[1:]
    if is_there(job_dir / contract.CANCEL_REQUEST):
        reason = f"Cancelled on request; {how}"
        return replace(outcome, state=State.CANCELLED, kind=VerdictKind.CANCELLED,
                       reason=reason, hint="")  # fmt: skip
    if is_there(job_dir / contract.HALT_REQUEST):
        reason = f"Halted on request, before all was saved; {how}"
        return replace(outcome, state=State.HALTED, kind=VerdictKind.REQUESTED,
                       reason=reason, hint=go_on(plan))  # fmt: skip
    return outcome


def _with_lost_node(job_dir: Path, plan: Plan, attempt: int, outcome: Outcome) -> Outcome:
    """Return the outcome with the node that was lost, if it is still taken for dead."""
    if outcome.kind is not VerdictKind.NODE_LOST or (outcome.evidence and outcome.evidence.host):
        return outcome
    found = _statuses(job_dir, plan, attempt)
    hosts = list(dict.fromkeys(status.host for status in found if status.host))
    if not (down := batch_system(plan).dead_hosts(hosts)):
        return outcome
    evidence = replace(outcome.evidence or Evidence(), host=down[0])
    return replace(outcome, reason=f"The node {down[0]} was lost.", evidence=evidence)


def _by_the_scheduler(plan: Plan, word: str, *, sure: bool = False) -> Outcome | None:
    """Return what the scheduler's word means.

    Args:
        sure: leave out a cancel, which is also how some sites end a job for its memory.
    """
    if word not in _ENDINGS:
        return None
    kind, reason = _ENDINGS[word]
    if sure and word in ("CANCELLED", DROPPED):
        return None
    if kind is VerdictKind.CANCELLED:
        return Outcome(State.CANCELLED, kind, reason)
    hint = more_memory(plan) if kind is VerdictKind.OUT_OF_MEMORY else go_on(plan)
    return failed(kind, reason, hint)


def _by_the_output(job_dir: Path, plan: Plan, attempt: int) -> Outcome | None:
    """Return what the last lines in the job's output mean."""
    lines = last_lines(job_dir / contract.job_output(attempt))
    cause = explain(lines, plan)
    if cause is None:
        return None
    reason = cause.reason[:1].upper() + cause.reason[1:] + "."
    return failed(cause.kind, reason, cause.hint, Evidence(last_lines=lines))


def _by_the_learners(job_dir: Path, plan: Plan, attempt: int) -> Outcome:
    known, count = Statuses(job_dir, attempt), plan.resources.learners
    statuses = known.learners(count)
    if any(status.state is State.FAILED for status in statuses):
        words = last_lines(step_log(job_dir, attempt, "launcher"))
        most_bytes = known.most_bytes(count)
        return decide(plan, Observed(statuses, None, words, None, most_bytes=most_bytes))
    reason = "The job ended without a verdict: it was killed."
    return failed(VerdictKind.UNKNOWN, reason, go_on(plan))


def go_on_in_job(job_dir: Path, attempt: int) -> int:
    """Go on in a job that Slurm runs again.

    Returns the job's exit code if nothing follows; else the next attempt runs in this process.
    """
    plan = plan_left(job_dir, attempt)
    path = job_dir / contract.verdict_file(attempt)
    verdict = contract.read_record(Verdict, path)
    if verdict is None:
        # Only a supervisor that was lost with its node leaves no verdict, as a rule.
        word = batch_system(plan).ended_before(job_id(job_dir, attempt)) or "NODE_FAIL"
        verdict = judge(job_dir, plan, attempt, word)
    if verdict.state is State.COMPLETED:
        return 0
    verdict, following = conclude(job_dir, plan, verdict, plan.resources.time_s, is_fresh=True)
    if following and verdict.action and verdict.action.starter == StarterKind.IN_ALLOCATION:
        requeued = replace(verdict.action, starter=StarterKind.REQUEUE.value)
        verdict = replace(verdict, action=requeued)
    write_patiently(path, to_json(verdict))
    say(f"{verdict.state}: {verdict.reason}")
    if following is not None and follow(following, say):
        run_here(following)
    return 0


@contextlib.contextmanager
def _log_of(job_dir: Path, attempt: int) -> Iterator[TextIO]:
    """Open the log of a job that has ended without a word, or nothing if it can't be written."""
    path = job_dir / contract.job_output(attempt)
    can_write = os.access(path, os.W_OK) or not path.exists()
    with (path if can_write else Path(os.devnull)).open(
        "a", encoding="utf-8", errors="backslashreplace"
    ) as file:
        yield file


def _say(log: TextIO, text: str) -> None:
    tell(f"{time.strftime('%H:%M:%S')} {printable(text)}", log)
    tell(text, sys.stderr)


def main(arguments: list[str]) -> Any:
    """Do what is left to do; return the verdict's action."""
    job_dir, attempt, word = Path(arguments[0]), int(arguments[1]), arguments[2]
    plan = plan_left(job_dir, attempt)
    path = job_dir / contract.verdict_file(attempt)
    known = contract.read_record(Verdict, path)
    is_new = known is None
    verdict = known or judge(job_dir, plan, attempt, word)
    verdict, following = conclude(job_dir, plan, verdict, None, in_job=False)
    write_patiently(path, to_json(verdict))
    with _log_of(job_dir, attempt) as log:
        say_there = partial(_say, log)
        if is_new:
            say_there(f"{verdict.state}: {verdict.reason}")
        if following is not None:
            follow(following, say_there)
    return verdict.action.why if verdict.action else ""


if __name__ == "__main__":
    sys.exit(answers.run(main))
