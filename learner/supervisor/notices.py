"""Tell people what happened to their training, once each, and never delay it."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dlctl import contract
from dlctl.contract import Endpoint, Notice, NotSent, Plan, Verdict
from learner.errors import UserFault
from learner.job.directives import is_superseded
from learner.system.files import resolve_secret

PAUSES_S: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between the tries to send a notice; a command of the user is run twice at most."""
LONGEST_S = 15.0
"""How long the end of a job waits at most, for all ways together."""
_TRIES_AT_END_S = 12.0
"""At the end no try begins that may take longer than this from the first."""
_LONGEST_WAIT_S = 60.0
"""If a receiver wants to be left alone for longer, the notice is left to the next dlctl command."""
_COMMAND_S = 10.0


def tell_started(job_dir: Path, plan: Plan, attempt: int, say: Callable[[str], None]) -> None:
    """Tell that the learners have started; returns at once."""
    notice = contract.notice_of_start(
        plan.training_id, plan.name, plan.site, attempt, plan.resources.learners
    )
    _begin(job_dir, plan, notice, say)


def tell_plateau(
    job_dir: Path, plan: Plan, attempt: int, plateau: tuple[str, int], say: Callable[[str], None]
) -> None:
    """Tell of a plateau at which the training goes on; returns at once.

    Args:
        plateau: the plateau in words, and since which step it is.
    """
    notice = contract.notice_of_plateau(plan.training_id, plan.name, plan.site, attempt, *plateau)
    _begin(job_dir, plan, notice, say)


def tell_end(job_dir: Path, plan: Plan, attempt: int, say: Callable[[str], None]) -> None:
    """Tell how the training ended, by the attempt's verdict; waits for at most `LONGEST_S`."""
    with contextlib.suppress(contract.ContractError, OSError):
        verdict = contract.read_record(Verdict, job_dir / contract.verdict_file(attempt))
        if verdict is not None:
            notice = contract.notice_of_end(verdict, plan.training_id, plan.name, plan.site)
            until = time.monotonic() + LONGEST_S
            for thread in _begin(job_dir, plan, notice, say, _TRIES_AT_END_S):
                thread.join(max(0.0, until - time.monotonic()))


def _begin(
    job_dir: Path, plan: Plan, notice: Notice, say: Callable[[str], None],
    within_s: float = math.inf,
) -> list[threading.Thread]:  # fmt: skip
    """Begin to send a notice in each way in which it is wanted."""
    endpoints: list[Endpoint] = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        file = Path(contract.endpoints_file(plan.root, plan.training_id))
        endpoints = contract.parse_endpoints(file.read_text())
    ways = contract.ways_of(plan.notify, endpoints, notice.event)
    if not ways or is_superseded(job_dir, notice.attempt):
        return []
    claim_of = partial(contract.notice_file, notice.attempt, notice.claimed_as)
    until = time.monotonic() + within_s

    def tell(way: str) -> None:
        send = partial(_send, job_dir, plan, endpoints, notice, way)
        pauses_s = PAUSES_S[:1] if way == "command" else PAUSES_S
        path = job_dir / claim_of(way)
        if way == "webhook" and _is_gone(path.parent):
            return
        if error := _send_once(path, send, pauses_s, until):
            say(f"Warning: no notice by {way}: {error.message}")
            if error.hint:
                say(f"  {error.hint}")

    threads = [threading.Thread(target=tell, args=(way,), daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    return threads


def _is_gone(notices: Path) -> bool:
    """Return whether the manifest's webhook has answered to another notice that it is gone."""
    with contextlib.suppress(OSError):
        return any(each.read_bytes().startswith(b"gone") for each in notices.glob("*.webhook"))
    return False


def _send_once(
    path: Path, send: Callable[[], None], pauses_s: Sequence[float], until: float
) -> NotSent | UserFault | None:
    """Send a notice if nobody has claimed it; return why it is left to others.

    Args:
        path: The file that claims it.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x") as file:
            file.write(f"claimed by the job at {time.time():.0f}\n")
    except OSError:
        return None  # somebody has sent it, or the disk is full
    for pause_s in (*pauses_s, math.inf):
        try:
            send()
        except (NotSent, UserFault) as error:
            wait_s = error.wait_s if isinstance(error, NotSent) else 0.0
            rest_s = max(contract.shortened(pause_s), wait_s)
            ends = time.monotonic() + rest_s + contract.NOTICE_TIMEOUT_S
            if error.hint or wait_s > _LONGEST_WAIT_S or ends >= until:
                _leave(path, wait_s)
                return error
            time.sleep(rest_s)
        else:
            with contextlib.suppress(OSError):
                path.write_text(f"sent by the job at {time.time():.0f}\n")
            break
    return None


def _leave(path: Path, wait_s: float) -> None:
    """Leave a notice that was claimed to others, or settle it if its receiver is gone."""
    with contextlib.suppress(OSError):
        if math.isinf(wait_s):
            path.write_text("gone: the receiver wants no more\n")
            return
        path.write_text(f"not before {int(time.time() + wait_s)}\n")
        path.rename(f"{path}.unsent")


def _send(job_dir: Path, plan: Plan, endpoints: list[Endpoint], notice: Notice, way: str) -> None:
    def resolve(reference: str) -> str:
        return resolve_secret(way, reference, Path(plan.root), os.environ)

    if way == "command" and plan.notify is not None:
        _run(job_dir, str(plan.notify.command), notice)
    else:
        contract.send_notice(way, plan.notify, endpoints, notice, plan.webhook_hosts, resolve)


def _run(job_dir: Path, command: str, notice: Notice) -> None:
    """Run the user's command; it gets the notice as JSON, and the main parts as variables."""
    variables = {
        "DLCTL_EVENT": notice.event, "DLCTL_TRAINING_ID": notice.training_id,
        "DLCTL_STATE": notice.state, "DLCTL_REASON": notice.reason,
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=job_dir / contract.CODE, input=notice.to_json(),
            env={**os.environ, **variables}, text=True, timeout=_COMMAND_S, capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSent(f"the command did not end well: {type(error).__name__}") from None
    if done.returncode:
        output = done.stderr.strip() or done.stdout.strip() or "it printed nothing"
        last = output.splitlines()[-1]
        raise NotSent(f"the command ended with exit code {done.returncode}: {last}")
