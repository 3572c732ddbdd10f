"""The stages of a rehearsal: the task of each attempt, its expected end, and the next one."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract import Action, Next, Plan, Rehearsal, Stage, State, Verdict, to_json
from learner.rehearsal.report import compared, was_killed

LEAST_STEPS = 3
"""One step before the halt, one between halt and kill, one afterwards."""

_EXPECTED = {
    Stage.REFERENCE: State.COMPLETED, Stage.HALT: State.HALTED, Stage.KILL: State.FAILED,
    Stage.FINISH: State.COMPLETED,
}  # fmt: skip
_ORDER = list(Stage)


def objection(rehearsal: Rehearsal, state: State, step: int, *, killed: bool) -> str:
    """Return why no attempt may follow this one; empty if it went as the rehearsal wants.

    Args:
        step: the newest checkpoint's.
        killed: whether the rehearsal has killed a learner of this attempt.
    """
    stage = Stage(rehearsal.stage)
    if state is not _EXPECTED[stage]:
        return f"the rehearsal's stage `{stage}` ended {state}, not {_EXPECTED[stage]}"
    if stage is Stage.KILL and not killed:
        return "the attempt failed before the rehearsal killed it"
    if stage is Stage.REFERENCE and step < LEAST_STEPS:
        return f"a rehearsal needs at least {LEAST_STEPS} steps, and there are {max(step, 0)}"
    return ""


def following(rehearsal: Rehearsal, step: int) -> Rehearsal | None:
    """Return what the next attempt does; None after the last one.

    Args:
        step: where the reference ended: a short training has fewer steps than were asked for.
    """
    stage = Stage(rehearsal.stage)
    if stage is Stage.FINISH:
        return None
    steps = step if stage is Stage.REFERENCE else rehearsal.steps
    stage = _ORDER[_ORDER.index(stage) + 1]
    thirds = {Stage.HALT: 1, Stage.KILL: 2}
    # A halted learner takes one more step: all agree on the halt at its end.
    at = max(thirds[stage], thirds[stage] * steps // 3) if stage in thirds else None
    if stage is Stage.HALT and at is not None:
        at = max(0, at - 1)
    return replace(rehearsal, steps=steps, stage=stage, at=at)


def doing(rehearsal: Rehearsal) -> str:
    """Return in words what an attempt does."""
    return {
        Stage.REFERENCE: f"{rehearsal.steps} steps undisturbed",
        Stage.HALT: f"from the beginning, halted after step {(rehearsal.at or 0) + 1}",
        Stage.KILL: f"continued, and killed after step {rehearsal.at}",
        Stage.FINISH: f"continued to step {rehearsal.steps}",
    }[Stage(rehearsal.stage)]


def conclude(
    job_dir: Path, plan: Plan, verdict: Verdict, *, may_go_on: bool
) -> tuple[Action, Plan]:
    """Return what follows an attempt, and the next attempt's plan.

    Args:
        verdict: with its `progress`: the step of the newest checkpoint.
        may_go_on: whether this is the supervisor of the rehearsal's job, and nobody asked to end.

    Raises:
        OSError: the checkpoints can't be moved, or the report can't be written.
    """
    assert plan.rehearsal is not None
    stage, step = Stage(plan.rehearsal.stage), verdict.progress
    killed = stage is Stage.KILL and was_killed(job_dir, verdict.attempt)
    why_not = objection(plan.rehearsal, verdict.state, step, killed=killed)
    if why_not or not may_go_on:
        why = why_not or "the job of the rehearsal was ended"
        return Action(Next.STOP, why), plan
    if stage is Stage.REFERENCE:
        _set_aside(job_dir, verdict.attempt)
    after = following(plan.rehearsal, step)
    if after is None:
        report = compared(job_dir, plan)
        contract.write_whole(job_dir / contract.REHEARSAL, to_json(report))
        return Action(Next.NOTHING, "the rehearsal is over"), plan
    action = Action(
        Next.CONTINUE, f"rehearsal, stage `{after.stage}`: {doing(after)}", verdict.attempt + 1,
        not_before=time.time(),
    )  # fmt: skip
    return action, replace(plan, rehearsal=after)


def _set_aside(job_dir: Path, attempt: int) -> None:
    """Move the reference's checkpoints away, so that the next attempt begins anew."""
    folder = job_dir / contract.REHEARSAL_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (job_dir / contract.CHECKPOINTS).rename(folder / contract.CHECKPOINTS)
    (job_dir / contract.CHECKPOINTS).mkdir()
    with contextlib.suppress(FileNotFoundError):  # else the next attempt would only store results
        (job_dir / contract.trained_file(attempt)).unlink()
