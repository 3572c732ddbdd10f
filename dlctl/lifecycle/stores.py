"""Reach the data stores of a training from this machine or the login node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.stores import EXIT_TRY_LATER, PREFIX, STORE, CachedData
from dlctl.errors import PlanError, RecordError
from dlctl.lifecycle.environment import bring_runtime
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.submit import lacking_runtime, send
from dlctl.lifecycle.watch import read_plan, refresh
from dlctl.stores.types import find_type

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session
    from dlctl.record import Record, RecordStore
    from dlctl.request.request import Request

_RUNTIME = Path(__file__).resolve().parents[2]
"""The folder in which the package `learner` lies beside this one."""
_HINT = "  HINT: "
_MOVE_TIMEOUT_S = 7 * 86400.0
QUICK_S, WHOLE_S = 8.0, 600.0
"""How long a check may take: of what is there at all, and of everything that is there."""


@dataclass(frozen=True)
class StoreCheck:
    """What was found in one container of a data store."""

    store: str
    """The store's id in the manifest."""
    container: str
    state: str
    """`ok`, `failed`, or `unknown`: this machine can't tell."""
    seen: str
    hint: str = ""


def check_stores(request: Request, *, quick: bool = False) -> list[StoreCheck]:
    """Ask each store with the manifest's credentials for its containers.

    Args:
        request: What would be submitted.
        quick: Whether it is enough to know that each container can be read.
    """
    found = []
    for store in request.plan.data_stores:
        for container, is_results in (
            (store.training_data, False), (store.training_results, True),
        ):  # fmt: skip
            if container is not None and store.scripts:
                found.append(_check(request, store, container, is_results, quick))
    return found


def _check(
    request: Request, store: contract.DataStore, container: str, is_results: bool, quick: bool
) -> StoreCheck:
    uses = find_type(store.type, request.manifest_path.parent).uses
    if not uses:
        seen = f"the type {store.type} has its own scripts, which only a job runs"
        return StoreCheck(store.id, container, "unknown", seen)
    settings = dict(store.connection)
    for key in store.secrets:
        settings[key] = request.secrets[f"data_stores.{store.position}.{key}"]
    env = {**os.environ, "PYTHONPATH": str(_RUNTIME), "DLCTL_STORE_PATIENCE_S": "3"}
    env |= {PREFIX + key.upper(): value for key, value in settings.items()}
    env |= {f"{PREFIX}ID": store.id, f"{PREFIX}CONTAINER": container}
    env |= {f"{PREFIX}QUICK": "1"} if quick else {}
    env |= {f"{PREFIX}MAY_BE_EMPTY": "1"} if is_results else {}
    argv = [sys.executable, "-m", "learner.storage", "check", uses]
    try:
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=QUICK_S if quick else WHOLE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        seen = "it does not answer this machine in time"
        return StoreCheck(store.id, container, "unknown", seen)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    hint = lines.pop().removeprefix(_HINT) if lines and lines[-1].startswith(_HINT) else ""
    state = {0: "ok", EXIT_TRY_LATER: "unknown"}.get(done.returncode, "failed")
    return StoreCheck(store.id, container, state, lines[-1] if lines else "no answer", hint)


def refuse_wrong_stores(request: Request, on_line: Callable[[str], None]) -> None:
    """Refuse a request whose stores this machine reaches, and which they refuse.

    Args:
        request: What is to be submitted.
        on_line: Called with a sentence about each store that can't be reached from here.

    Raises:
        PlanError: a store refuses the credentials, or has no such container.
    """
    for check in check_stores(request, quick=True):
        if check.state == "failed":
            raise PlanError(f"nothing was sent: {check.seen}", hint=check.hint)
        if check.state == "unknown":
            on_line(f"data store {check.store}: not checked from this machine: {check.seen}")


def bring_by_login(
    session: Session, plan: contract.Plan, on_line: Callable[[str], None] | None = None
) -> None:
    """Have the login node load the training data before the job, if the site's file says so.

    Raises:
        ResultsError: the data can't be loaded; nothing is queued.
        TransportError
    """
    if any(store.via == "login" and store.training_data for store in plan.data_stores):
        _run(session, plan, "load", 1, on_line)


def store_again(
    session: Session, record: Record, store: RecordStore,
    on_line: Callable[[str], None] | None = None,
) -> list[str]:  # fmt: skip
    """Have the login node store a training's results; return a line for each data store.

    Raises:
        RecordError: the training has not ended, or no data store takes its results.
        ResultsError: they can't be stored.
        TransportError
    """
    record = refresh(session, [record], store)[0]
    if not record.state.final:
        raise RecordError(
            f"{record.training_id} is {record.state}: its results are stored when it has ended",
            hint=f"dlctl show {record.training_id}",
        )
    plan = read_plan(session, record)
    if not any(STORE in each.scripts for each in plan.data_stores):
        raise RecordError(
            f"no data store of {record.training_id} takes results by a script",
            hint=f"dlctl fetch {record.training_id}",
        )
    return _run(session, plan, "store", record.attempt, on_line)


@dataclass(frozen=True)
class SiteCache:
    """The cache of a site: what it holds, and what was removed just now."""

    held: list[CachedData]
    """The longest unused first."""
    removed: list[CachedData]
    total_bytes: int
    """Less than all of `held` together if they share contents."""


def look_into_cache(session: Session, keep_bytes: int | None = None) -> SiteCache:
    """Return what a site's cache holds; first remove what no training uses, down to a size.

    Args:
        keep_bytes: How much may stay; None removes nothing.

    Raises:
        SiteError: the site has no Python for its nodes.
        TransportError
    """
    words = [session.site.root] if keep_bytes is None else [session.site.root, str(keep_bytes)]
    runtime = bring_runtime(session)
    told = run_module(
        session, runtime, "learner.supervisor.cached", words, timeout_s=_MOVE_TIMEOUT_S
    ).value
    held, removed = ([CachedData(**row) for row in told[name]] for name in ("held", "removed"))
    return SiteCache(held, removed, int(told["total_bytes"]))


def _run(
    session: Session, plan: contract.Plan, verb: str, attempt: int,
    on_line: Callable[[str], None] | None,
) -> list[str]:  # fmt: skip
    send(session, plan.root, lacking_runtime(session, plan))
    answer = run_module(
        session, plan, "learner.supervisor.bring", [verb, plan.job_dir, str(attempt)],
        timeout_s=_MOVE_TIMEOUT_S, on_line=on_line,
    )  # fmt: skip
    return [str(line) for line in answer.value]
