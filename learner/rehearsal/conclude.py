"""What follows an attempt of a rehearsal: the next stage, or the report."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract import Action, Next, Plan, Stage, Verdict, to_json
from learner.rehearsal.report import compared, was_killed
from learner.rehearsal.stages import doing, following, objection


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
