"""What the data stores of a manifest hold, or what is wrong with them.

`dlctl stores check`, and before they send anything `submit` and `rehearse`, ask by one function.
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
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from dlctl import contract
from dlctl.contract.stores import EXIT_TRY_LATER, MOUNTED_STORES, PREFIX
from dlctl.errors import PlanError
from dlctl.files.archive import Entry
from dlctl.files.upload import Tree
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.staging import RUNTIME, last_sentence
from dlctl.lifecycle.submit import lacking_runtime, send
from dlctl.stores.types import find_type

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session
    from dlctl.request.request import Request
    from dlctl.tell import Tell

_AT_ONCE = 8
_QUICK_S, _WHOLE_S = 8.0, 600.0
"""How long a check may take: of what a store lists at once, and of everything that is there."""
_LISTING_S = 4.0
"""For how long a store lists what it has, if only the first objects count."""


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
    """The implementation, or a mounted type; empty: a type's scripts, which only a job runs."""
    variables: dict[str, str]
    limit_s: float


Ask = Callable[[Sequence[Question]], Sequence[tuple[int, str]]]
"""Returns for each question an exit code and what was said."""
Where = Literal["here", "login", "node"]


def check_stores(
    session: Session, request: Request, where: Where = "here", *, quick: bool = False
) -> list[StoreCheck]:
    """Ask each store with the manifest's credentials for its containers.

    Directories that the nodes mount are looked for on the login node, or on a node.

    Args:
        where: Who asks: this machine, the login node, or a node in a job of its own.
        quick: Whether the part of a container is enough that a store lists in seconds.
    """
    questions = [
        _question(request, store, container, is_results, quick)
        for store in request.plan.data_stores
        for container, is_results in (
            (store.training_data, False), (store.training_results, True),
        ) if container is not None
    ]  # fmt: skip
    asked = {True: list[Question](), False: list[Question]()}
    for each in questions:
        if each.uses:
            asked[each.uses in MOUNTED_STORES and where != "node"].append(each)
    ask: Ask
    if where == "here":
        ask = partial(_ask_here, is_node=session.site.transport.kind == "local")
    else:
        ask = ask_there(session, request.plan, on_node=where == "node")
    found: dict[int, tuple[int, str]] = {}
    for some, asks in ((asked[True], partial(_look, session)), (asked[False], ask)):
        found |= dict(zip(map(id, some), asks(some) if some else (), strict=True))
    return [_check(each, found.get(id(each))) for each in questions]


def _question(
    request: Request, store: contract.DataStore, container: str, is_results: bool, quick: bool
) -> Question:
    settings = dict(store.connection)
    if store.path is not None:
        settings = {"path": store.path if is_results else f"{store.path}/{container}"}
    for key in store.secrets:
        settings[key] = request.secrets[f"data_stores.{store.position}.{key}"]
    variables = {PREFIX + key.upper(): value for key, value in settings.items()}
    variables |= {f"{PREFIX}ID": store.id, f"{PREFIX}CONTAINER": container}
    variables |= {f"{PREFIX}QUICK_S": str(_LISTING_S)} if quick else {}
    variables |= {f"{PREFIX}MAY_BE_EMPTY": "1"} if is_results else {}
    variables["DLCTL_STORE_PATIENCE_S"] = "3"
    known = find_type(store.type, request.manifest_path.parent)
    uses = store.type if known.is_mounted else known.uses
    return Question(store.id, container, uses, variables, _QUICK_S if quick else _WHOLE_S)


def _check(question: Question, answer: tuple[int, str] | None) -> StoreCheck:
    if answer is None:
        sentence = "its type has scripts of its own, which only a job runs"
        return StoreCheck(question.store, question.container, "unknown", sentence)
    code, text = answer
    state = {0: "ok", EXIT_TRY_LATER: "unknown"}.get(code, "failed")
    return StoreCheck(question.store, question.container, state, *last_sentence(text))


def _look(session: Session, questions: Sequence[Question]) -> list[tuple[int, str]]:
    """Look for directories where the transport leads, which is no node of a cluster."""
    paths = [each.variables[f"{PREFIX}PATH"] for each in questions]
    script = "".join(f"test -e {shlex.quote(path)}; echo $?\n" for path in paths)
    codes = session.transport.run(script).stdout.decode().split()
    if session.site.scheduler.kind == "local":  # this is the only node
        code, lack = 1, "is not there\n  HINT: Correct `connection.path`, or make the directory"
    else:
        code, lack = EXIT_TRY_LATER, (
            "is not on the login node: if the nodes don't mount it either, the job will fail "
            "(`stores check` asks one with `--from node`)"
        )  # fmt: skip
    return [
        (0, f"{path} is there") if found == "0"
        else (code, f"{path} of data store {each.store!r} {lack}")
        for path, found, each in zip(paths, codes, questions, strict=True)
    ]  # fmt: skip


def _ask_here(questions: Sequence[Question], *, is_node: bool) -> list[tuple[int, str]]:
    """Ask from this machine, all at once: one that does not answer delays no other."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(partial(_ask_one_here, is_node=is_node), questions))


def _ask_one_here(question: Question, *, is_node: bool) -> tuple[int, str]:
    if question.variables.get(f"{PREFIX}ACCESS") == "node" and not is_node:
        return EXIT_TRY_LATER, "it opens with the role of a node, which this machine does not have"
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


def refuse_wrong_stores(session: Session, request: Request, tell: Tell) -> None:
    """Refuse a request with a store that `dlctl stores check` finds wrong; tell what can't be seen.

    Raises:
        PlanError: a store refuses the credentials, has no such container, or holds what can't be
            data.
    """
    lines = set()
    for check in check_stores(session, request, quick=True):
        if check.state == "failed":
            raise PlanError(f"nothing was sent: {check.seen}", hint=check.hint)
        if check.state == "unknown":
            lines.add(f"data store {check.store}: not checked from this machine: {check.seen}")
    for line in sorted(lines):
        tell.note(line)
