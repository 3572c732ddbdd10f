"""The manifest's `parameter_server`: how learners share parameters through a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dlctl.manifest_parts import Count, Duration, Part, Real
from dlctl.yaml_source import Trail

if TYPE_CHECKING:
    from dlctl.manifest import Manifest

MOST_IN_ROUNDS = 62
"""Learners that can wait for one another: the ranks that one word of a shard's file holds."""

Solver = Literal[
    "parallel_sgd", "downpour_sgd", "elastic_averaging", "model_averaging", "diloco", "own"
]


class ParameterServer(Part):
    """How learners share their parameters; every setting fits the solver, or is an error."""

    solver: Solver = Field(
        "elastic_averaging", description="What a push does; own: the one that build() returns."
    )
    shards: Count | None = Field(
        None, ge=1, le=4096, description="Parts of the parameters; one for each node by default."
    )
    push_every: Count = Field(1, ge=1, description="Batches of a learner between its pushes.")
    pull_every: Count | None = Field(
        None, ge=1, description="Batches between pulls, a multiple of push_every, the default."
    )
    staleness: Count | None = Field(
        None, ge=0, description="Pushes that a learner may be ahead of the slowest."
    )
    aggregate: Literal["every_push", "all"] | None = Field(
        None, description="Follows from the solver; said here, it has to agree with it."
    )
    min_learners: Count | None = Field(
        None, ge=1, description="With fewer the training ends; by default half of them."
    )
    transport: Literal["tcp", "mpi"] = Field(
        "tcp", description="Between nodes; mpi survives the loss of no node."
    )
    learning_rate: Real | None = Field(
        None, gt=0, description="Of the server's steps; the optimizer's by default."
    )
    momentum: Real | None = Field(None, ge=0, lt=1, description="Of the server's steps.")
    adagrad: bool | None = Field(
        None, description="downpour_sgd: a rate of its own for each parameter."
    )
    moving_rate: Real | None = Field(
        None, gt=0, le=1, description="elastic_averaging: α; 0.9 / learners by default."
    )
    timeout: Duration = Field("2m", description="How long servers and learners are waited for.")
    snapshot_every: Duration = Field("1m", description="Between snapshots of the servers' state.")

    @property
    def in_rounds(self) -> bool:
        """Return whether each learner waits for all others at every push (own: unknown here)."""
        return self.solver in ROUNDS or (self.solver == PARALLEL and not self.staleness)


@dataclass(frozen=True)
class _Traits:
    """What one solver uses and does."""

    settings: tuple[str, ...]
    """Of those that not every solver has."""
    at_once: bool | None
    """None: the class decides."""
    sends_weights: bool = False
    does: str = ""


PARALLEL = "parallel_sgd"
OWN = "own"
ROUNDS = ("model_averaging", "diloco")
_TRAITS = {
    PARALLEL: _Traits(
        ("learning_rate", "momentum", "staleness"), False,
        does="takes one step for all learners' gradients (with staleness from 1 on, at every push)",
    ),
    "downpour_sgd": _Traits(
        ("learning_rate", "momentum", "adagrad", "staleness"), True,
        does="takes a step for every push as it comes",
    ),
    "elastic_averaging": _Traits(
        ("moving_rate", "staleness"), True, sends_weights=True,
        does="draws learner and center to each other at every push",
    ),
    "model_averaging": _Traits(
        (), False, sends_weights=True, does="waits for all learners, and takes their weights' mean"
    ),
    "diloco": _Traits(
        ("learning_rate", "momentum"), False, sends_weights=True,
        does="waits for all learners, and steps towards their weights' mean",
    ),
    OWN: _Traits(
        ("learning_rate", "staleness"), None,
        does="aggregates as its class says: at every push with `push`, all with `step`",
    ),
}  # fmt: skip
_NOT_ALL_USE = ("staleness", "learning_rate", "momentum", "adagrad", "moving_rate")
_Problem = tuple[str, str]
"""A key of parameter_server, and what is wrong with it."""


def conflicts(manifest: Manifest) -> list[tuple[Trail, str]]:
    """Return which settings contradict one another: the place of each, and a sentence."""
    server = manifest.parameter_server
    if server is None:
        return []
    checks: tuple[Callable[[ParameterServer], list[_Problem]], ...] = (
        _unused, _staleness, _aggregate, _pull_every, _adagrad,
    )  # fmt: skip
    found: list[tuple[Trail, str]] = [
        (("parameter_server", key), text) for check in checks for key, text in check(server)
    ]
    if server.in_rounds and manifest.learners > MOST_IN_ROUNDS:
        found.append((
            ("learners",),
            f"{manifest.learners} learners can't all wait for one another with {server.solver}; "
            f"at most {MOST_IN_ROUNDS} are allowed, or another solver",
        ))  # fmt: skip
    return found + _against_training(manifest)


def _unused(server: ParameterServer) -> list[_Problem]:
    used = _TRAITS[server.solver].settings
    has = f"of such settings it has {', '.join(used)}" if used else "it has no such settings"
    return [
        (key, f"{server.solver} does not use it; {has}")
        for key in _NOT_ALL_USE
        if key not in used
        and (value := getattr(server, key)) is not None
        and value is not False  # zero is a setting, too
    ]


def _staleness(server: ParameterServer) -> list[_Problem]:
    if server.staleness != 0 or server.solver == PARALLEL:
        return []
    if "staleness" not in _TRAITS[server.solver].settings:
        return []  # told already
    return [(
        "staleness",
        f"with 0 all learners would wait for one another, which {server.solver} does not; "
        f"at least 1 is allowed, or the solver {PARALLEL}",
    )]  # fmt: skip


def _aggregate(server: ParameterServer) -> list[_Problem]:
    at_once, does = _TRAITS[server.solver].at_once, _TRAITS[server.solver].does
    if server.solver == PARALLEL:
        at_once = not server.in_rounds
    meant = {True: "every_push", False: "all", None: None}[at_once]
    if server.aggregate in (None, meant):
        return []
    return [("aggregate", f"'{server.aggregate}' contradicts the solver: {server.solver} {does}")]


def _pull_every(server: ParameterServer) -> list[_Problem]:
    pull, push = server.pull_every, server.push_every
    if pull is None or pull == push:
        return []
    if _TRAITS[server.solver].sends_weights:
        return [(
            "pull_every",
            f"{server.solver} takes the answer with each push; {push}, as push_every, is allowed",
        )]  # fmt: skip
    if pull % push:
        return [("pull_every", f"{pull} is no multiple of push_every, {push}")]
    return []


def _adagrad(server: ParameterServer) -> list[_Problem]:
    if server.adagrad and server.momentum and server.solver == "downpour_sgd":
        return [("momentum", "adagrad has none; one of the two is allowed")]
    return []


def _against_training(manifest: Manifest) -> list[tuple[Trail, str]]:
    """Return the built-in loop's settings that say how learners agree without a server."""
    found: list[tuple[Trail, str]] = []
    server = manifest.parameter_server
    if server is not None and server.solver == OWN and manifest.framework.job is None:
        found.append((
            ("parameter_server", "solver"),
            "own is the solver that build(arguments) returns, and framework.command has none; "
            "framework.job is needed, or another solver",
        ))  # fmt: skip
    if manifest.training.average_every_steps > 1:
        found.append((
            ("training", "average_every_steps"),
            "is for learners without parameter_server; there model_averaging and push_every say it",
        ))  # fmt: skip
    if manifest.training.exchange != "auto":
        found.append((
            ("training", "exchange"),
            "is for learners without parameter_server; with one they exchange nothing themselves",
        ))  # fmt: skip
    return found
