"""The end of an attempt, however it ended: make its verdict, print it and write it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
import resource
import signal
import time
import traceback
from pathlib import Path

from dlctl import contract
from dlctl.contract import Action, Next, Plan, State, Verdict, VerdictKind, tell_output, to_json
from dlctl.contract.ground.amounts import format_bytes
from dlctl.contract.ground.safe_text import printable
from dlctl.contract.metrics import EventKind, Source
from dlctl.contract.programs.advice import higher_limits
from dlctl.contract.programs.verdict_rules import UNMAPPED, Place, first_match
from learner.job.directives import is_gone, is_superseded, is_there
from learner.job.metrics import MetricsFile, tell
from learner.job.outcome import Outcome, failed, last_verdict
from learner.job.status import write_patiently
from learner.lifecycle.manager import conclude
from learner.lifecycle.next_attempt import remember_bad_nodes
from learner.lifecycle.starters import Following
from learner.system.files import FULL


def say(text: str) -> None:
    """Print one line with the time of day, for people who read the job's output.

    The names of a program's files may be in it: none makes a line of its own.
    """
    tell(f"{time.strftime('%H:%M:%S')} {printable(text)}")


def leave(
    job_dir: Path, attempt: int, outcome: Outcome, plan: Plan | None = None,
    left_s: float | None = None,
) -> tuple[int, Following | None]:  # fmt: skip
    """Write and print the verdict; return the supervisor's exit code, and what follows.

    Args:
        plan: the attempt's; None if it can't be read, then nothing follows.
        left_s: how long the job may still run; None: no limit is known.
    """
    if is_gone(job_dir / contract.attempt_dir(attempt)):
        return 1, None  # somebody removed the job directory: don't create it again
    path = job_dir / contract.verdict_file(attempt)
    if is_superseded(job_dir, attempt) and is_there(path):
        say(f"Attempt {attempt} was judged without this supervisor, and a later one has begun.")
        return 1, None
    if plan is not None:
        outcome = with_limits(plan, outcome)
    verdict = last_verdict(job_dir, attempt, outcome, plan)
    if verdict.made and (output := tell_output(verdict.made.output)):
        say(f"  {output}")
    following = None
    if plan is None and outcome.kind is not VerdictKind.INTERNAL:
        verdict = dataclasses.replace(verdict, action=Action(Next.STOP, "it could not begin"))
    if plan is not None:
        remember_bad_nodes(plan, verdict)
        verdict, following = conclude(job_dir, plan, verdict, left_s)
    with contextlib.suppress(OSError):
        reserve_file(job_dir, verdict.attempt).unlink()
    say(f"{verdict.state}: {verdict.reason}")
    if verdict.hint and not following:
        say(f"  {verdict.hint}")
    _print_last_lines(job_dir, verdict, names_log="whole log" in verdict.hint and not following)
    if not write_patiently(path, to_json(verdict)):
        say(f"The verdict can't be written to {str(path)!r}: the disk is full or read-only.")
        return 1, None
    MetricsFile(job_dir / contract.metrics_file(verdict.attempt, 0, Source.JOB)).tell(
        verdict.step, None, f"{verdict.state}: {verdict.reason}", EventKind.VERDICT
    )
    return (0 if verdict.state in (State.COMPLETED, State.HALTED) else 1), following


def _print_last_lines(job_dir: Path, verdict: Verdict, *, names_log: bool) -> None:
    """Print where the log of the learner at fault is, or the last lines of what has none.

    Args:
        names_log: Whether a hint has said how to see it.
    """
    if verdict.evidence is None:
        return
    log = job_dir / contract.learner_log(verdict.attempt, verdict.evidence.rank)
    if verdict.evidence.role == "learner" and is_there(log):
        if not names_log:
            say(f"  its whole log is {log}")
        return
    for line in verdict.evidence.last_lines:
        tell(f"  | {line}")


def with_limits(plan: Plan, outcome: Outcome) -> Outcome:
    """Return the outcome; it names the limit of this process that memory has met."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    killed = outcome.evidence is not None and outcome.evidence.signal == signal.SIGKILL
    found = first_match(Place.LEARNER, [outcome.reason])
    is_memory = found is not None and found[0].kind is VerdictKind.OUT_OF_MEMORY
    is_memory = is_memory or UNMAPPED.search(outcome.reason) is not None
    if limit == resource.RLIM_INFINITY or killed or not is_memory:
        return outcome
    reason = (
        f"{outcome.reason.rstrip('.')}; each of its processes may have {format_bytes(limit)} of "
        "address space (ulimit -v)."
    )
    return dataclasses.replace(
        outcome, kind=VerdictKind.SITE, reason=reason, hint=higher_limits(plan)
    )


def reserve_file(job_dir: Path, attempt: int) -> Path:
    """Return the file that keeps space for the verdict."""
    return job_dir / contract.attempt_dir(attempt) / ".reserve"


def load_rest(plan: Plan) -> None:
    """Import now what the end of an attempt needs: its files may be purged while it trains."""
    rooms = ["learner.supervisor", *["learner.storage"] * bool(plan.data_stores)]
    for room in rooms:
        path = importlib.import_module(room).__path__
        for module in pkgutil.walk_packages(path, f"{room}.", onerror=lambda _: None):
            if not module.name.endswith("__main__"):
                # Of what only a container's Python runs, this one may lack packages and syntax.
                with contextlib.suppress(Exception):
                    importlib.import_module(module.name)


def any_checkpoints(job_dir: Path) -> bool:
    """Return whether there may be a checkpoint; True if the file system does not answer."""
    try:
        return any((job_dir / contract.CHECKPOINTS).iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def left_undone(plan: Plan, job_dir: Path, attempt: int) -> str:
    """Return which part of the data the learners of a parameter server have not trained on.

    The built-in loop trains on everything; a user's program may leave early, or never join.
    """
    if plan.parameter_server is None:
        return ""
    from psrv.cursor.base import CursorError
    from psrv.cursor.overseer import progress

    path = job_dir / contract.cursor_file(attempt)
    if is_gone(path):
        return "none of them joined the parameter server"
    with contextlib.suppress(CursorError, OSError):
        done, samples = progress(path) or (0, 0)
        if done < samples:
            return f"{done} of {samples} samples were done"
    return ""


def crash_outcome(error: BaseException, training_id: str) -> Outcome:
    """Return the outcome of an attempt whose supervisor raised an unexpected error."""
    if isinstance(error, OSError) and error.errno in FULL:
        reason = f"The job directory's file system is full: {error.strerror}."
        hint = f"Free space there, or files (df -i), then run: dlctl resume {training_id}"
        return failed(VerdictKind.DISK_FULL, reason, hint)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    reason = f"The supervisor failed: {type(error).__name__}: {error}{where}."
    see = f"see the job's output: dlctl logs {training_id} --debug"
    hint = f"This is a fault in dlctl or in the file system; {see}"
    return failed(VerdictKind.INTERNAL, reason, hint)
