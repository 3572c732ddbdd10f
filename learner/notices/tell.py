"""Tell people what happened to their training, once each, and never delay it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from dlctl import contract
from dlctl.contract import Notice, NotSent, Plan, Verdict
from learner.errors import UserFault
from learner.job.directives import is_superseded
from learner.system.secret_files import resolve_secret

ATTEMPTS = 2
PAUSE_S = 1.0
LONGEST_S = 15.0
"""How long the end of a job waits at most, for all ways together."""
_COMMAND_S = 10.0


def tell_started(job_dir: Path, plan: Plan, attempt: int, say: Callable[[str], None]) -> None:
    """Tell that the learners have started; returns at once."""
    notice = contract.notice_of_start(
        plan.training_id, plan.name, plan.site, attempt, plan.resources.learners
    )
    _begin(job_dir, plan, notice, say)


def tell_plateau(
    job_dir: Path, plan: Plan, attempt: int, told: tuple[str, int], say: Callable[[str], None]
) -> None:
    """Tell of a plateau at which the training goes on; returns at once.

    Args:
        told: the plateau in words, and since which step it is.
    """
    notice = contract.notice_of_plateau(plan.training_id, plan.name, plan.site, attempt, *told)
    _begin(job_dir, plan, notice, say)


def tell_end(job_dir: Path, plan: Plan, attempt: int, say: Callable[[str], None]) -> None:
    """Tell how the training ended, by the attempt's verdict; waits for at most `LONGEST_S`."""
    with contextlib.suppress(contract.ContractError, OSError):
        verdict = contract.read_record(Verdict, job_dir / contract.verdict_file(attempt))
        if verdict is not None:
            notice = contract.notice_of_end(verdict, plan.training_id, plan.name, plan.site)
            until = time.monotonic() + LONGEST_S
            for thread in _begin(job_dir, plan, notice, say):
                thread.join(max(0.0, until - time.monotonic()))


def _begin(
    job_dir: Path, plan: Plan, notice: Notice, say: Callable[[str], None]
) -> list[threading.Thread]:
    """Begin to send a notice in each way, if it is wanted."""
    if plan.notify is None or notice.event not in plan.notify.on:
        return []
    if is_superseded(job_dir, notice.attempt):
        return []
    threads = [
        threading.Thread(target=_send_once, args=(job_dir, plan, notice, way, say), daemon=True)
        for way in plan.notify.ways
    ]
    for thread in threads:
        thread.start()
    return threads


def _send_once(
    job_dir: Path, plan: Plan, notice: Notice, way: str, say: Callable[[str], None]
) -> None:
    path = job_dir / contract.notice_file(notice.attempt, notice.claimed_as, way)
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x") as file:
            file.write(f"claimed by the job at {time.time():.0f}\n")
    except OSError:
        return  # somebody has sent it, or the disk is full
    for left in reversed(range(ATTEMPTS)):
        try:
            _send(job_dir, plan, notice, way)
        except (NotSent, UserFault) as error:
            if left:
                time.sleep(PAUSE_S)
                continue
            say(f"Warning: no notice by {way}: {error}")
            with contextlib.suppress(OSError):
                path.rename(f"{path}.unsent")
        else:
            with contextlib.suppress(OSError):
                path.write_text(f"sent by the job at {time.time():.0f}\n")
            return


def _send(job_dir: Path, plan: Plan, notice: Notice, way: str) -> None:
    notify, root = plan.notify, Path(plan.root)
    assert notify is not None
    if way == "webhook":
        url = resolve_secret("webhook", str(notify.webhook), root, os.environ)
        contract.send_webhook(url, notice)
    elif way == "email" and notify.smtp is not None:
        password = notify.smtp.password
        if password is not None:
            password = resolve_secret("smtp.password", password, root, os.environ)
        contract.send_mail(notify.smtp, password, str(notify.email), notice)
    elif way == "command":
        _run(job_dir, str(notify.command), notice)


def _run(job_dir: Path, command: str, notice: Notice) -> None:
    """Run the user's command; it gets the notice as JSON, and the main parts as variables."""
    told = {
        "DLCTL_EVENT": notice.event, "DLCTL_TRAINING_ID": notice.training_id,
        "DLCTL_STATE": notice.state, "DLCTL_REASON": notice.reason,
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=job_dir / contract.CODE, env={**os.environ, **told},
            input=json.dumps(asdict(notice)), text=True, timeout=_COMMAND_S, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSent(f"the command did not end well: {type(error).__name__}") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "it printed nothing"
        last = said.splitlines()[-1]
        raise NotSent(f"the command ended with exit code {done.returncode}: {last}")
