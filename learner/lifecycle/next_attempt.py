"""Write the files of the next attempt, once: plan, manifest, batch script and receipt."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract import Action, Plan, to_json
from learner.job.batch import batch_system


def changed_plan(plan: Plan, action: Action) -> Plan:
    """Return the plan of the next attempt."""
    resources, batch = plan.resources, plan.batch
    if action.time_s is not None and resources.time_s is not None:
        time_s = min(resources.time_s, max(60, action.time_s))
        resources = replace(resources, time_s=time_s)
    if action.memory_factor > 1:
        resources = replace(
            resources,
            memory_bytes_per_learner=_times(
                resources.memory_bytes_per_learner, action.memory_factor
            ),
            memory_bytes_per_node=_times(resources.memory_bytes_per_node, action.memory_factor),
        )
    return replace(plan, resources=resources, batch=replace(batch, exclude=action.exclude))


def _times(memory_bytes: int | None, factor: float) -> int | None:
    return None if memory_bytes is None else round(memory_bytes * factor)


def begin(job_dir: Path, attempt: int, plan: Plan, action: Action) -> bool:
    """Begin the attempt after `attempt`; return False if somebody else has begun it.

    Args:
        plan: the next attempt's.

    The process that creates the receipt exclusively has begun the attempt, and alone gives it its
    files, as `dlctl resume` does at the login node (templates/login/submit.sh.j2).

    Raises:
        OSError: the files can't be written.
    """
    number = attempt + 1
    here = job_dir / contract.attempt_dir(number)
    sent = here / f".sent.{uuid.uuid4().hex}"
    sent.mkdir(parents=True)
    try:
        shutil.copy(job_dir / contract.manifest_file(attempt), sent / contract.MANIFEST)
        script = (job_dir / contract.script_file(attempt)).read_text()
        wait_s = action.not_before - time.time()
        script = batch_system(plan).script_of(script, plan, wait_s)
        contract.write_whole(sent / contract.SCRIPT, script)
        contract.write_whole(sent / contract.PLAN, to_json(plan))
        token = f"{contract.token(plan.training_id, number)}\n"
        if not create_once(job_dir / contract.submit_begin(number), token):
            return False
        for path in sent.iterdir():
            path.replace(here / path.name)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(sent)
    return True


def withdraw(job_dir: Path, attempt: int) -> None:
    """Undo `begin` for an attempt that certainly has no job, so that somebody else can begin it."""
    names = (contract.submit_answer(attempt), contract.plan_file(attempt),
             contract.manifest_file(attempt), contract.script_file(attempt),
             contract.submit_begin(attempt))  # fmt: skip
    for name in names:
        (job_dir / name).unlink(missing_ok=True)


def claim(job_dir: Path, attempt: int, job_id: str) -> bool:
    """Claim an attempt for a job that runs already; return False if it is another's."""
    return create_once(job_dir / contract.claim(attempt), f"{job_id}\n")


def create_once(path: Path, text: str) -> bool:
    """Create a file exclusively, with its text or not at all; return False if it exists."""
    try:
        file = path.open("x")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:  # the disk is full
        path.unlink()
        raise
    return True
