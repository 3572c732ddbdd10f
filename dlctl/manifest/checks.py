"""Finds what is wrong with a manifest as a whole: contradictions, missing files, stores' types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlctl.contract.programs.commands import only_program, unfit_programs
from dlctl.contract.stores import LOAD, STORE
from dlctl.errors import ManifestError
from dlctl.manifest.errors import unknown_key
from dlctl.manifest.model import MOST_LEARNERS, Manifest
from dlctl.manifest.parameter_server import (
    MOST_IN_ROUNDS,
    OWN,
    PARALLEL,
    TRAITS,
    ParameterServerSection,
)
from dlctl.manifest.parts import DataStoreSection, Reference
from dlctl.manifest.requirements import named_file, requirement_lines
from dlctl.stores.types import Key, StoreType, find_type
from dlctl.yaml_source import Trail

_NOT_ALL_USE = ("staleness", "learning_rate", "momentum", "adagrad", "moving_rate")

_Problem = tuple[Trail, str]
"""The place of a setting, and what is wrong with it."""


def conflicts(manifest: Manifest) -> list[_Problem]:
    """Return the settings that contradict one another."""
    server = manifest.parameter_server
    found = _of_nodes(manifest)
    if server is None:
        return found
    found += [(("parameter_server", key), text) for key, text in _of_server(server)]
    if server.in_rounds and manifest.learners > MOST_IN_ROUNDS:
        found.append((
            ("learners",),
            f"{manifest.learners} learners can't all wait for one another with {server.solver}; "
            f"at most {MOST_IN_ROUNDS} are allowed, or another solver",
        ))  # fmt: skip
    if server.solver == OWN and manifest.framework.job is None:
        found.append((
            ("parameter_server", "solver"),
            "own is the solver that build(arguments) returns, and framework.command has none; "
            "framework.job is needed, or another solver",
        ))  # fmt: skip
    if manifest.training.average_every_steps > 1:
        found.append((
            ("training", "average_every_steps"),
            "is for learners without a server; with one, use model_averaging and push_every",
        ))  # fmt: skip
    if manifest.training.exchange != "auto":
        found.append((
            ("training", "exchange"),
            "is for learners without parameter_server; with one, they exchange nothing themselves",
        ))  # fmt: skip
    return found


def _of_nodes(manifest: Manifest) -> list[_Problem]:
    learners, nodes, each = manifest.learners, manifest.nodes, manifest.learners_per_node
    if nodes and each and nodes * each != learners:
        return [(
            ("learners",),
            f"{learners} is not nodes x learners_per_node, {nodes} x {each} = {nodes * each}; "
            "name two of the three",
        )]  # fmt: skip
    if nodes and learners % nodes:
        nearest = max(nodes, learners - learners % nodes)
        return [(
            ("nodes",),
            f"{learners} learners can't be spread evenly over {nodes} nodes; "
            f"{nearest} would do",
        )]  # fmt: skip
    if each and learners % each:
        return [(("learners_per_node",), f"{learners} learners are not a multiple of {each}")]
    if learners > MOST_LEARNERS:
        return [(("nodes",), f"{learners} learners are too many; at most {MOST_LEARNERS} can be")]
    return []


def _of_server(server: ParameterServerSection) -> Iterator[tuple[str, str]]:
    solver, traits = server.solver, TRAITS[server.solver]
    used = f"of these settings it uses {', '.join(traits.settings)}"
    for key in _NOT_ALL_USE:
        value = getattr(server, key)
        if key not in traits.settings and value is not None and value is not False:
            has = used if traits.settings else "it uses none of these settings"
            yield key, f"{solver} does not use it; {has}"
    if server.staleness == 0 and solver != PARALLEL and "staleness" in traits.settings:
        yield (
            "staleness",
            (
                f"with 0 all learners would wait for one another, which {solver} does not; "
                f"at least 1 is allowed, or the solver {PARALLEL}"
            ),
        )
    at_once = not server.in_rounds if solver == PARALLEL else traits.at_once
    if server.aggregate not in (None, {True: "every_push", False: "all", None: None}[at_once]):
        yield "aggregate", f"'{server.aggregate}' contradicts the solver: {solver} {traits.does}"
    pull, push = server.pull_every or server.push_every, server.push_every
    if pull != push and traits.sends_weights:
        yield (
            "pull_every",
            (f"{solver} takes the answer with each push; {push}, as push_every, is allowed"),
        )
    elif pull % push:
        yield "pull_every", f"{pull} is not a multiple of push_every, {push}"
    if server.adagrad and server.momentum and solver == "downpour_sgd":
        yield "momentum", "adagrad has none; one of the two is allowed"


def check_files(manifest: Manifest, folder: Path) -> None:
    """Check that every file exists that the manifest names, and what is in requirements.

    Raises:
        ManifestError: with every file that is missing, else every wrong requirement, a line each.
    """
    problems = []
    for key, name in named_files(manifest):
        path = folder / name
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            where = manifest._places.by_key.get(key, "manifest")
            problems.append(f"{where}: {key}: {name} {problem} in {folder}")
    where = manifest._places.by_key.get("framework.command", "manifest")
    for problem in unfit_programs(manifest.framework.command, folder):
        problems.append(f"{where}: framework.command: {problem}")
    if problems:
        hint = "the path is relative to the manifest's folder, which is what is sent"
        raise ManifestError("\n".join(problems), problems=problems, hint=hint)
    requirement_lines(manifest, folder)


def named_files(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the key and path of each file that must be in the manifest's folder."""
    framework, found = manifest.framework, []
    if framework.job is not None:
        found.append(("framework.job", framework.job))
        weights = framework.arguments.get("weights")
        in_store = any(store.training_data for store in manifest.data_stores)  # or in DATA_DIR
        if weights is not None and not in_store and not framework.stored_weights:
            found.append(("framework.arguments.weights", str(weights)))
    if program := only_program(framework.command):
        found.append(("framework.command", program))
    metrics = manifest.evaluation_metrics
    if metrics is not None and metrics.parser is not None:
        found.append(("evaluation_metrics.parser", metrics.parser))
    files = map(named_file, manifest.requirements)
    return found + [("requirements", name) for name in files if name]


def type_problems(data: Any, folder: Path) -> list[tuple[Trail, str]]:
    """Return which types of stores a raw manifest names that there are none of."""
    stores = data.get("data_stores") if isinstance(data, dict) else None
    found: list[tuple[Trail, str]] = []
    for position, store in enumerate(stores if isinstance(stores, list) else ()):
        name = store.get("type") if isinstance(store, dict) else None
        if isinstance(name, str) and name:
            try:
                find_type(name, folder)
            except ManifestError as error:
                trail: Trail = ("data_stores", position, "type")
                found += [(trail, problem) for problem in error.problems]
    return found


def store_problems(manifest: Manifest, folder: Path) -> list[tuple[Trail, str]]:
    """Return what is wrong with the stores: the place of each problem, and a sentence."""
    found: list[tuple[Trail, str]] = []
    for position, store in enumerate(manifest.data_stores):
        trail: Trail = ("data_stores", position)
        try:
            known = find_type(store.type, folder)
        except ManifestError:
            continue  # `type_problems` tells
        if not known.is_mounted:
            found += [((*trail, *at), what) for at, what in _of_one(store, known)]
        elif store.training_results and store.training_results.checkpoints:
            at = (*trail, "training_results", "checkpoints")
            found.append((at, f"a {store.type} takes no checkpoints"))
    return found


def _of_one(store: DataStoreSection, known: StoreType) -> list[tuple[Trail, str]]:
    found: list[tuple[Trail, str]] = []
    for key, settings in known.connection.items():
        value = store.connection.get(key)
        if settings.required and not value and not store.connection.get(settings.without):
            found.append((("connection",), f"{key} is missing{_what(settings)}"))
    for key, value in store.connection.items():
        if key not in known.connection:
            found.append((("connection", key), unknown_key(key, list(known.connection))))
        elif (allowed := known.connection[key].choices) and value not in allowed:
            found.append((("connection", key), f"{' or '.join(allowed)} is allowed"))
        elif isinstance(value, str) and any(c in value for c in "\r\n"):
            found.append((("connection", key), "one line is allowed"))
        elif key.endswith("url") and isinstance(value, Reference):
            what = "holds a credential, or refers to one; the address alone is allowed"
            found.append((("connection", key), what))
        elif key.endswith("url") and not str(value).startswith(("http://", "https://")):
            found.append((("connection", key), "is no URL; http://… or https://… is allowed"))
        elif key.endswith("url") and set(str(value)) & set("?#"):
            found.append((("connection", key), "must end before `?` or `#`"))
    for name, place in ((LOAD, "training_data"), (STORE, "training_results")):
        if getattr(store, place) is not None and name not in known.scripts:
            what = "gives no training data" if name == LOAD else "takes no results"
            found.append(((place,), f"a store of the type {store.type} {what}"))
    return found


def _what(settings: Key) -> str:
    return f" ({settings.description.rstrip('.')})" if settings.description else ""


def not_in_this_version(manifest: Manifest) -> list[str]:
    """Return one sentence for each requested feature that this version lacks: it runs without."""
    server, learners, found = manifest.parameter_server, manifest.learners, []
    if server is None and "parameter_server" in manifest.model_fields_set:
        found.append("parameter_server is empty: there is none; {} is one with its defaults.")
    if server is not None and learners == 1:
        found.append("One learner needs no parameter server: it trains alone, and none is started.")
    elif server is not None and (server.min_learners or 0) > learners:
        what = "parameter_server.min_learners exceeds the number of learners"
        found.append(f"{what}: all {learners} are needed.")
    if manifest.gpu_type:
        found.append("This version does not use gpu_type; use scheduler.constraint.")
    if manifest.storage:
        found.append("This version does not use storage.")
    unused = manifest.training.model_fields_set - {"seed"}
    if manifest.framework.command is not None and server is None and unused:
        keys = ", ".join(f"training.{key}" for key in sorted(unused))
        found.append(f"{keys}: only the built-in loop reads these; give framework.command the "
                     "options that your program has.")  # fmt: skip
    return found
