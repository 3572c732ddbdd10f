"""Decide what follows an attempt that has ended, and start it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dlctl.contract import Plan, StarterKind, Verdict, VerdictKind
from dlctl.contract.ground.amounts import format_bytes
from dlctl.contract.launchers import LAUNCHERS
from dlctl.contract.programs.advice import limits_memory, more_time
from dlctl.contract.programs.verdict_rules import NEWEST, without_checkpoint
from learner.job.batch import REQUEUED, UNEXPLAINED, Silent, batch_system, own_job_id
from learner.job.context import plan_left
from learner.job.status import patiently
from learner.lifecycle import history, policy
from learner.lifecycle.next_attempt import (
    KNOWN_S,
    begin,
    changed_plan,
    claim,
    on_what_is_left,
    withdraw,
)
from learner.lifecycle.starters import MAY_LACK_NODES, CanNotStart, Following, candidates, submit
from learner.rehearsal.stages import conclude as conclude_rehearsal

_SILENCE_S = 600.0
"""How long Slurm's controller may be silent, or the disk full, before somebody else is to start the
attempt."""
_BRIEF_SILENCE_S = 30.0
"""The same for learners that Slurm does not start."""


def conclude(
    job_dir: Path,
    plan: Plan,
    verdict: Verdict,
    left_s: float | None,
    *,
    in_job: bool = True,
    is_fresh: bool = False,
) -> tuple[Verdict, Following | None]:
    """Return the verdict with its action, and the next attempt if there is one."""
    before = history.verdicts_before(job_dir, verdict.attempt)
    verdict = _with_excess(plan, history.measured(job_dir, plan, verdict, before))
    verdicts = [*before, verdict]
    by_a_person = history.is_asked_to_end(job_dir)
    if plan.rehearsal is not None:
        may_go_on = in_job and not is_fresh and not by_a_person
        return _rehearsed(job_dir, plan, verdict, left_s, may_go_on=may_go_on)
    has_trained = history.trained(job_dir, plan, verdict.attempt + 1) is not None
    action = policy.decide(
        plan.lifecycle, verdicts, time.time(), by_a_person=by_a_person, has_trained=has_trained
    )
    if verdict.action is not None and verdict.action.goes_on and action.goes_on:
        action = replace(action, not_before=verdict.action.not_before)  # it has waited before
    if action.why == policy.USED_UP:  # to go on alone would only be to end again
        hint = f"Resume {NEWEST}, {more_time(plan)}"
        saved = verdict.made is None or verdict.made.checkpoints.files
        verdict = replace(verdict, hint=hint if saved else without_checkpoint(hint))
    if not action.goes_on:
        return replace(verdict, action=action), None
    kind = VerdictKind(verdict.kind)
    fewer = None
    if in_job and not is_fresh and kind in MAY_LACK_NODES:
        # A job that gets SIGTERM has half a minute: too short to hear of a lost node.
        is_ended = kind is VerdictKind.SCHEDULER and UNEXPLAINED in verdict.reason.lower()
        patience_s = 0.0 if kind is VerdictKind.UNKNOWN or is_ended else KNOWN_S
        fewer = on_what_is_left(plan, verdict.attempt, verdict.job_id, patience_s)
    following = Following(
        job_dir, verdict.attempt, fewer or changed_plan(_whole(job_dir, plan), action), kind,
        action,
        own_job_id(verdict.job_id) if in_job else verdict.job_id, _end(left_s), in_job, is_fresh,
        tuple(verdict.bad_hosts), has_fewer=fewer is not None,
        nodes_are_fine=_nodes_are_fine(plan, verdicts) and not is_fresh and fewer is None,
        is_in_queue=in_job and not is_fresh and _is_in_queue(verdict),
    )  # fmt: skip
    return _chosen(verdict, following, candidates(following))


def _with_excess(plan: Plan, verdict: Verdict) -> Verdict:
    """Return the verdict; it says if a learner used more than `memory`, which nothing limits."""
    limit = plan.resources.memory_bytes_per_learner
    used = max((past.memory_bytes or 0 for past in verdict.pasts[-1:]), default=0)
    if limits_memory(plan) or limit is None or used <= limit:
        return verdict
    excess = (
        f"a learner used {format_bytes(used)} of memory, and `memory` is {format_bytes(limit)}: "
        "a cluster would have killed it"
    )
    return replace(verdict, reason=f"{verdict.reason.rstrip('.')}; {excess}.")


def _chosen(
    verdict: Verdict, following: Following, starters: Sequence[StarterKind]
) -> tuple[Verdict, Following]:
    action = replace(following.action, starter=starters[0].value)
    return replace(verdict, action=action), replace(following, action=action, starters=starters)


def _end(left_s: float | None) -> float | None:
    return None if left_s is None else time.time() + left_s


def _is_in_queue(verdict: Verdict) -> bool:
    return verdict.evidence is not None and verdict.evidence.scheduler_state == REQUEUED


def _nodes_are_fine(plan: Plan, verdicts: list[Verdict]) -> bool:
    """Return whether learners that had trained were killed, or ended by a jump of the loss.

    After an attempt in vain the nodes are checked again.
    """
    newest, kinds = verdicts[-1], (VerdictKind.UNKNOWN, VerdictKind.LOSS_SPIKE)
    gained = len(verdicts) == 1 or newest.progress > verdicts[-2].progress
    steps_alone = plan.launch.step_per_learner
    return newest.kind in kinds and newest.step >= 0 and gained and not steps_alone


def _rehearsed(
    job_dir: Path, plan: Plan, verdict: Verdict, left_s: float | None, *, may_go_on: bool
) -> tuple[Verdict, Following | None]:
    """Return the verdict on an attempt of a rehearsal; the next one always runs in the same job."""
    action, plan = conclude_rehearsal(job_dir, plan, verdict, may_go_on=may_go_on)
    if not action.goes_on:
        return replace(verdict, action=action), None
    following = Following(
        job_dir, verdict.attempt, plan, VerdictKind(verdict.kind), action, verdict.job_id,
        _end(left_s),
    )  # fmt: skip
    return _chosen(verdict, following, [StarterKind.IN_ALLOCATION])


def _whole(job_dir: Path, plan: Plan) -> Plan:
    """Return the plan with all learners, for an attempt with an allocation of its own."""
    attempt = plan.lifecycle.whole_attempt if plan.lifecycle else None
    return plan if attempt is None else plan_left(job_dir, attempt)


def follow(
    following: Following, say: Callable[[str], None], is_ended: Callable[[], bool] = lambda: False
) -> bool:
    """Start the next attempt; return whether it runs in the place of this process.

    Otherwise a new job runs it, somebody else has begun it, or the login side will start it.

    Args:
        is_ended: whether the scheduler has begun to end this job.
    """
    say(f"Attempt {following.number} follows: {following.action.why}.")
    for starter in following.starters:
        try:
            return _start(following, starter, say, is_ended)
        except CanNotStart as error:
            say(f"It can't be started by {starter}: {error}")
    return False


def _start(
    following: Following, starter: StarterKind, say: Callable[[str], None],
    is_ended: Callable[[], bool],
) -> bool:  # fmt: skip
    """Start the next attempt this way; return as `follow` does.

    Raises:
        CanNotStart: nothing was started.
    """
    if starter is StarterKind.CLIENT:
        say("The next dlctl command that looks at the training starts it.")
        return False
    if starter is StarterKind.REQUEUE:
        refusal = "" if following.is_in_queue else batch_system(following.plan).requeue()
        if refusal:
            raise CanNotStart(refusal)
        say("This job is in the queue again, and starts it.")
        return False
    runs_here = starter is StarterKind.IN_ALLOCATION
    if not _waited(following, runs_here, is_ended):
        say("A person ended the training.")
        return False
    if runs_here and _runs_elsewhere(following.plan):
        say("Slurm has taken the job from this node: it goes on elsewhere.")
        return False
    number = following.number
    has_begun = _patiently(
        lambda: begin(following.job_dir, following.ended, following.plan, following.action)
    )
    # The process that began it may have been killed before it submitted a job. Of two jobs, only
    # one can claim the attempt.
    if not has_begun and not (runs_here and following.is_fresh):
        say(f"Somebody else has begun attempt {number}.")
        return False
    try:
        job_id = following.job_id if runs_here else submit(following)
        is_ours = not runs_here or _patiently(lambda: claim(following.job_dir, number, job_id))
    except CanNotStart:
        if has_begun:
            withdraw(following.job_dir, number)
        raise
    if not is_ours:
        say(f"Somebody else has claimed attempt {number}.")
        return False
    say(f"It is job {job_id or '(not known yet)'}.")
    return runs_here


def _patiently(write: Callable[[], bool]) -> bool:
    """Return what `write` returns, once it can write.

    Raises:
        CanNotStart: the disk was full for too long.
    """
    try:
        return patiently(write, _SILENCE_S)
    except OSError as error:
        raise CanNotStart(f"its files can't be written: {error.strerror}") from error


def _runs_elsewhere(plan: Plan) -> bool:
    """Return whether this job was taken from its first node.

    Some launchers can't start the learners anyway before the scheduler answers.

    Raises:
        CanNotStart: the scheduler was silent for too long.
    """
    system, is_needed = batch_system(plan), bool(LAUNCHERS[plan.launch.kind].scheduler)
    until = time.monotonic() + (_SILENCE_S if is_needed else _BRIEF_SILENCE_S)
    while True:
        try:
            return system.is_elsewhere()
        except Silent as silence:
            if time.monotonic() > until:
                if not is_needed:
                    return False
                raise CanNotStart(f"Slurm's controller is silent: {silence}") from silence
        time.sleep(1)


def _waited(following: Following, runs_here: bool, is_ended: Callable[[], bool]) -> bool:
    """Wait until the attempt may start; return False if a person ended the training meanwhile.

    Slurm waits by itself for a job that it has not started yet.

    Raises:
        CanNotStart: this job is no longer where the attempt can run.
    """
    waits = runs_here or not batch_system(following.plan).allocates
    while True:
        if history.is_asked_to_end(following.job_dir):
            return False
        if runs_here and is_ended():
            raise CanNotStart("the scheduler ends the job")
        left_s = following.action.not_before - time.time()
        if left_s <= 0 or not waits:
            return True
        time.sleep(min(left_s, 0.5))
