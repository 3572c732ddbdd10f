"""The data stores of trainings and the caches of sites, asked and changed from this machine.

Imports `dlctl.lifecycle` for an open site. What passes through are answers of stores, and what a
site's cache holds. What a submission itself needs of stores is in `dlctl.lifecycle.staging`.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.stores import EXIT_TRY_LATER, PREFIX, STORE, CachedData
from dlctl.errors import PlanError, RecordError
from dlctl.files.archive import Entry
from dlctl.files.upload import Tree
from dlctl.lifecycle import read_plan, refresh
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.staging import MOVE_TIMEOUT_S, RUNTIME, bring_runtime, last_sentence, save
from dlctl.lifecycle.submit import lacking_runtime, renew_credentials, send
from dlctl.request.attempts import read_newest
from dlctl.stores.types import find_type

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session
    from dlctl.record import Record, RecordStore
    from dlctl.request.request import Request

_AT_ONCE = 8
_QUICK_S, _WHOLE_S = 8.0, 600.0
"""How long a check may take: of what is there at all, and of everything that is there."""


@dataclass(frozen=True)
class StoreCheck:
    """The content of one container of a data store."""

    store: str
    """The store's id in the manifest."""
    container: str
    state: str
    """`ok`, `failed`, or `unknown`: the machine that asked can't tell."""
    seen: str
    hint: str = ""


@dataclass(frozen=True)
class Question:
    """One container of a data store, and what the program that asks has to know."""

    store: str
    container: str
    uses: str
    """The implementation; empty: the type's own scripts, which only a job runs."""
    variables: dict[str, str]
    limit_s: float


Ask = Callable[[Sequence[Question]], Sequence[tuple[int, str]]]
"""Returns for each question an exit code and what was said."""


def check_stores(request: Request, ask: Ask, *, quick: bool = False) -> list[StoreCheck]:
    """Ask each store with the manifest's credentials for its containers.

    Args:
        ask: From where: `ask_here`, or what `ask_there` returns.
        quick: Whether it is enough to know that each container can be read.
    """
    questions = [
        _question(request, store, container, is_results, quick)
        for store in request.plan.data_stores if store.scripts
        for container, is_results in (
            (store.training_data, False), (store.training_results, True),
        ) if container is not None
    ]  # fmt: skip
    known = [each for each in questions if each.uses]
    found = dict(zip(map(id, known), ask(known) if known else (), strict=True))
    return [_check(each, found.get(id(each))) for each in questions]


def _question(
    request: Request, store: contract.DataStore, container: str, is_results: bool, quick: bool
) -> Question:
    settings = dict(store.connection)
    for key in store.secrets:
        settings[key] = request.secrets[f"data_stores.{store.position}.{key}"]
    variables = {PREFIX + key.upper(): value for key, value in settings.items()}
    variables |= {f"{PREFIX}ID": store.id, f"{PREFIX}CONTAINER": container}
    variables |= {f"{PREFIX}QUICK": "1"} if quick else {}
    variables |= {f"{PREFIX}MAY_BE_EMPTY": "1"} if is_results else {}
    variables["DLCTL_STORE_PATIENCE_S"] = "3"
    uses = find_type(store.type, request.manifest_path.parent).uses
    return Question(store.id, container, uses, variables, _QUICK_S if quick else _WHOLE_S)


def _check(question: Question, answer: tuple[int, str] | None) -> StoreCheck:
    if answer is None:
        sentence = "its type has scripts of its own, which only a job runs"
        return StoreCheck(question.store, question.container, "unknown", sentence)
    code, text = answer
    state = {0: "ok", EXIT_TRY_LATER: "unknown"}.get(code, "failed")
    return StoreCheck(question.store, question.container, state, *last_sentence(text))


def ask_here(questions: Sequence[Question]) -> list[tuple[int, str]]:
    """Ask from this machine, all at once: one that does not answer delays no other."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_ask_here, questions))


def _ask_here(question: Question) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": str(RUNTIME), **question.variables}
    argv = [sys.executable, "-m", "learner.storage", "check", question.uses]
    try:
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=question.limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return EXIT_TRY_LATER, "it does not answer this machine in time"
    return done.returncode, done.stdout + done.stderr


def ask_there(session: Session, plan: contract.Plan, *, on_node: bool) -> Ask:
    """Return a function that asks from a site.

    Args:
        on_node: In a job of its own on a compute node, instead of on the login node.
    """
    settings = plan.environment
    python = settings.site_python or settings.python
    plan = replace(plan, environment=replace(settings, python=python, site_python=None))
    folder = f"secrets/check.{secrets.token_hex(8)}"

    def ask(questions: Sequence[Question]) -> list[tuple[int, str]]:
        rows = [{"uses": each.uses, "variables": each.variables, "limit_s": each.limit_s}
                for each in questions]  # fmt: skip
        file = Entry("asked.json", json.dumps(rows).encode(), mode=0o600)
        send(session, plan.root, [*lacking_runtime(session, plan), Tree(folder, [file])])
        try:
            found = run_module(
                session, plan, "learner.supervisor.site_data",
                ["check", f"{plan.root}/{folder}/asked.json"], on_node=on_node,
            )  # fmt: skip
        finally:  # the module removes the folder, too, if it begins
            session.transport.run(f"rm -rf -- {shlex.quote(f'{plan.root}/{folder}')}")
        return [(int(code), str(text)) for code, text in found]

    return ask


def refuse_wrong_stores(request: Request, on_line: Callable[[str], None]) -> None:
    """Refuse a request whose stores this machine reaches, and which they refuse.

    Args:
        on_line: Called with a sentence about each store that can't be reached from here.

    Raises:
        PlanError: a store refuses the credentials, or has no such container.
    """
    lines = set()
    for check in check_stores(request, ask_here, quick=True):
        if check.state == "failed":
            raise PlanError(f"nothing was sent: {check.seen}", hint=check.hint)
        if check.state == "unknown":
            lines.add(f"data store {check.store}: not checked from this machine: {check.seen}")
    for line in sorted(lines):
        on_line(line)


def store_again(
    session: Session, record: Record, store: RecordStore,
    on_line: Callable[[str], None] = lambda _: None,
) -> list[str]:  # fmt: skip
    """Have the login node, or this machine, store a training's results; return a line a store.

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
    manifest = read_newest(session.transport, record).manifest
    renew_credentials(session, plan, manifest, Path(record.folder))
    return save(session, plan, record.attempt, on_line)


@dataclass(frozen=True)
class SiteCache:
    """The cache of a site: what it holds, and what was removed just now."""

    held: list[CachedData]
    """The longest unused first."""
    removed: list[CachedData]
    total_bytes: int
    """Less than all of `held` together if they share contents."""
    would_remove: list[CachedData] = field(default_factory=list)
    """What a dry run would have removed."""


def look_into_cache(
    session: Session, keep_bytes: int | None = None, unused_s: float = 0.0
) -> SiteCache:
    """Return what a site's cache holds; first remove what no training uses, down to a size.

    Args:
        keep_bytes: How much may stay; None removes nothing.
        unused_s: Remove only what no training has asked for in this time.

    Raises:
        SiteError: the site has no Python for its nodes.
        TransportError
    """
    words = ["cache", session.site.root]
    if keep_bytes is not None:
        words += [str(keep_bytes), str(unused_s)]
    runtime = bring_runtime(session)
    answer = run_module(
        session, runtime, "learner.supervisor.site_data", words, timeout_s=MOVE_TIMEOUT_S
    )
    held, removed = ([CachedData(**row) for row in answer[name]] for name in ("held", "removed"))
    return SiteCache(held, removed, int(answer["total_bytes"]))


def try_emptying(session: Session, keep_bytes: int) -> SiteCache:
    """Return what a site's cache holds, and what `look_into_cache` would remove of it.

    It may be more if several folders share contents: removing one of them then frees less.
    """
    found = look_into_cache(session)
    excess_bytes, going = found.total_bytes - keep_bytes, list[CachedData]()
    for each in found.held:
        if excess_bytes > 0 and not each.users:
            going.append(each)
            excess_bytes -= each.size_bytes
    return replace(found, would_remove=going)
