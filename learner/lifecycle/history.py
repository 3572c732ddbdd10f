"""Read how earlier attempts have ended, and how far the training has come."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract import Directive, Plan, State, Status, Verdict
from learner.checkpoint_files.layout import directory_name, steps_present
from learner.frameworks.own_checkpoints import newest
from learner.job.directives import is_there
from learner.job.guards import read_stopped
from learner.lifecycle.used import with_past

_MOST_FILES = 10_000


def verdicts_before(job_dir: Path, attempt: int) -> list[Verdict]:
    """Return the verdicts of the attempts before this one; those without any are left out."""
    found = []
    for number in range(1, attempt):
        verdict = contract.readable_record(Verdict, job_dir / contract.verdict_file(number))
        found += [verdict] if verdict else []
    return found


def trained(job_dir: Path, plan: Plan, before: int) -> tuple[int, Verdict] | None:
    """Return the newest attempt that has trained this code, with its verdict, or None.

    Only storing is left after such an attempt. If an attempt after it has run other code, the
    results are no longer those of this code.

    Args:
        before: the attempt of which the earlier ones are asked.
    """
    for attempt in range(before - 1, 0, -1):
        if not (job_dir / contract.status_file(attempt, "supervisor", 0)).exists():
            continue  # it never began
        try:
            done = contract.read_record(Verdict, job_dir / contract.trained_file(attempt))
            ran = contract.read_record(Plan, job_dir / contract.plan_file(attempt))
        except (contract.ContractError, OSError):
            return None
        if ran is None or ran.code_digest != plan.code_digest:
            return None
        if done is not None:
            return attempt, done
    return None


def is_asked_to_end(job_dir: Path) -> bool:
    """Return whether a person has asked to halt or to cancel the training."""
    names = (contract.HALT_REQUEST, contract.CANCEL_REQUEST)
    return any(is_there(job_dir / name) for name in names)


def measured(
    job_dir: Path, plan: Plan, verdict: Verdict, before: Sequence[Verdict]
) -> Verdict:  # fmt: skip
    """Return a verdict with how far its attempt has come, and what it and those before have used.

    Args:
        before: the verdicts of the attempts before this one.
    """
    own = None if plan.framework.has_loop else plan.checkpoint.files
    mark, written_at = newest_checkpoint(job_dir, own)
    supervisor = _status(job_dir, verdict.attempt, "supervisor", 0)
    began_at = supervisor.started_at
    ended_at = verdict.finished_at or time.time()
    if verdict.state is State.FAILED:  # what was done after the checkpoint is lost
        ended_at = max(began_at, min(ended_at, written_at))
    ranks = range(plan.resources.learners)
    statuses = [_status(job_dir, verdict.attempt, "learner", rank) for rank in ranks]
    steps = [status.step for status in statuses if status.step is not None]
    if stopped := read_stopped(job_dir, verdict.attempt):  # watchdogs may die before they tell
        steps.append(stopped.step)
    verdict = replace(
        verdict, progress=mark, step=max(steps, default=-1),
        used_s=max(0.0, ended_at - began_at) if began_at else 0.0,
    )  # fmt: skip
    return with_past(job_dir, plan, verdict, before, supervisor, statuses)


def halting_s(job_dir: Path, plan: Plan, attempt: int) -> float | None:
    """Return how long the newest attempt before this one that was halted took to save and end.

    For programs that report no times of their own. If the learners were killed while they still
    saved, it is the time that they were given, and at least the plan's margin: saving takes longer.
    None: none was halted, or it can't be read.
    """
    for number in range(attempt - 1, 0, -1):
        asked = contract.readable_record(Directive, job_dir / contract.directive_file(number))
        if asked is None or asked.action != "halt":
            continue
        ranks = range(plan.resources.learners)
        ended = [_status(job_dir, number, "learner", rank) for rank in ranks]
        if all(status.state is State.HALTED for status in ended):
            return max(status.heartbeat_at for status in ended) - asked.issued_at
        if all(status.state is not State.DEPLOYING for status in ended):
            return max(asked.grace_s, float(plan.resources.halt_margin_s or 0))
    return None


def newest_checkpoint(job_dir: Path, pattern: str | None = None) -> tuple[int, float]:
    """Return how far the newest checkpoint is, and when it was written, in Unix seconds.

    The first is the step of a checkpoint of the built-in loop, or of a program's own by its
    pattern, or else when a program last wrote to CHECKPOINT_DIR, in Unix seconds; -1 without any.
    """
    root = job_dir / contract.CHECKPOINTS
    with contextlib.suppress(OSError):
        if steps := steps_present(root):
            return steps[0], (root / directory_name(steps[0])).stat().st_mtime
        if pattern is not None and (own := newest(root, pattern)) is not None:
            return int(own.written_at) if own.step is None else own.step, own.written_at
        if newest_s := _newest_s(root):
            return int(newest_s), newest_s
    return -1, 0.0


def _newest_s(root: Path) -> float:
    """Return when anything below a folder was last written, in Unix seconds; 0 if it is empty.

    A file that is overwritten leaves its folder's time as it is. Hidden names are temporary.
    """
    newest_s, looked = 0.0, 0
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name[:1] != "."]
        for name in [*folders, *files]:
            if name[:1] != ".":
                with contextlib.suppress(FileNotFoundError):
                    newest_s = max(newest_s, Path(folder, name).lstat().st_mtime)
        looked += len(files)
        if looked > _MOST_FILES:
            break
    return newest_s


def _status(job_dir: Path, attempt: int, role: str, rank: int) -> Status:
    path = job_dir / contract.status_file(attempt, role, rank)
    return contract.readable_record(Status, path) or Status(role, rank, attempt, State.DEPLOYING)
