"""Follow a training over the attempts that its jobs begin, and begin those that nobody else does.

The decision is the node side's alone (`learner.lifecycle`): the login side runs the same program
where the transport's shell runs, and tells it what the scheduler says of the end.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, RemoteCommandError, TransportError
from dlctl.lifecycle.remote_module import run_module
from dlctl.request.attempts import read_newest

if TYPE_CHECKING:
    from dlctl.lifecycle.observation import Observation
    from dlctl.lifecycle.session import Session
    from dlctl.record import Record

PATIENCE_S = 60.0
"""How long a node may take to begin the attempt that it has announced."""
_MODULE = "learner.supervisor.aftermath"


def newest(session: Session, records: Iterable[Record]) -> dict[str, Record]:
    """Return the records of trainings whose next attempt has begun, at their newest attempt."""
    begun = list(records)
    if not begun:
        return {}
    folders = " ".join(shlex.quote(record.job_dir) for record in begun)
    receipt = shlex.quote(contract.submit_begin("[0-9]*")).replace("'", "")
    script = (
        f'for d in {folders}; do (cd "$d" 2>/dev/null && for f in {receipt}; do echo "$f"; done)\n'
        "printf '\\036'; done"
    )
    answers = session.transport.run(script, timeout_s=90.0).text.split("\036")
    known = {}
    for record, text in zip(begun, answers, strict=False):
        numbers = [word.split("/")[1] for word in text.split() if word.count("/") >= 2]
        attempt = max((int(n) for n in numbers if n.isdecimal()), default=record.attempt)
        known[record.training_id] = replace(
            record, attempt=max(attempt, record.attempt), job_id="", state=State.QUEUED,
            reason="", hint="", ended_at=0.0,
        )  # fmt: skip
    return known


def is_due(record: Record, seen: Observation) -> bool:
    """Return whether the login side has to see to the next attempt: nobody else does."""
    if seen.next_begun or seen.cancel_asked or seen.halt_asked or not seen.exists:
        return False
    if seen.awaited is not None:
        return False
    if seen.verdict and seen.verdict.action is None:  # of a node that outlived the supervisor's
        return seen.continues and seen.verdict.state in (State.FAILED, State.HALTED)
    action = seen.verdict.action if seen.verdict else None
    if action is not None:
        patience_s = 0.0 if action.starter == contract.StarterKind.CLIENT else PATIENCE_S
        return action.goes_on and seen.now >= action.not_before + patience_s
    # A job that ended without a word: its supervisor was killed, or its first node was lost.
    return (
        seen.verdict is None and record.state in (State.FAILED, State.HALTED)
        and bool(seen.claim) and seen.continues
    )  # fmt: skip


def go_on(session: Session, record: Record, seen: Observation) -> str:
    """Judge an attempt that nobody else judges, and begin the next if one follows.

    Returns why the site's login node could not do that; empty if it did.
    """
    job = seen.history or seen.job
    word = job.state.value if job else ""
    try:
        plan = read_newest(session.transport, record).plan
        arguments = [record.job_dir, str(record.attempt), word, job.reason if job else ""]
        run_module(session, plan, _MODULE, arguments, timeout_s=300.0)
    except DlctlError as error:
        if isinstance(error, TransportError) and not isinstance(error, RemoteCommandError):
            raise  # the site can't be reached, which says nothing about the training
        return f"it can't be continued from here: {error.message}"
    return ""
