"""Move data between a training's data stores and its site outside its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.stores import LOAD, STORE
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.staging import by_laptop
from dlctl.lifecycle.submit import lacking_runtime, send

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session

MOVE_TIMEOUT_S = 7 * 86400.0
OnLine = Callable[[str], None] | None


def bring(session: Session, plan: contract.Plan, on_line: OnLine = None) -> None:
    """Load the training data before the job, if the site's file says that its nodes can't.

    Raises:
        ResultsError: the data can't be loaded; nothing is queued.
        TransportError
    """
    via = {store.via for store in plan.data_stores if LOAD in store.scripts}
    if "login" in via:
        _run(session, plan, "load", 1, on_line)
    if "laptop" in via:
        send(session, plan.root, lacking_runtime(session, plan))
        by_laptop.load(session, plan, on_line)


def save(session: Session, plan: contract.Plan, attempt: int, on_line: OnLine = None) -> list[str]:
    """Store what an attempt has made, which has ended; return a line for each data store.

    Raises:
        ResultsError: it can't be stored.
        TransportError
    """
    if all(store.via == "laptop" for store in plan.data_stores if STORE in store.scripts):
        send(session, plan.root, lacking_runtime(session, plan))
        return by_laptop.save(session, plan, attempt, on_line)
    return _run(session, plan, "store", attempt, on_line)


def _run(
    session: Session, plan: contract.Plan, verb: str, attempt: int, on_line: OnLine
) -> list[str]:
    send(session, plan.root, lacking_runtime(session, plan))
    answer = run_module(
        session, plan, "learner.supervisor.bring", [verb, plan.job_dir, str(attempt)],
        timeout_s=MOVE_TIMEOUT_S, on_line=on_line,
    )  # fmt: skip
    return [str(line) for line in answer.value]
