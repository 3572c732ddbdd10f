"""The manifest's `parameter_server`: how learners share parameters through a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from dlctl.manifest.parts import Count, Duration, Real, Section

MOST_IN_ROUNDS = 62
"""How many learners can wait for one another: one word of a shard's file holds their ranks."""

Solver = Literal[
    "parallel_sgd", "downpour_sgd", "elastic_averaging", "model_averaging", "diloco", "own"
]


class ParameterServerSection(Section, title="ParameterServer"):
    """Settings by which learners share parameters; one that does not fit the solver is an error."""

    solver: Solver = Field(
        "elastic_averaging", description="What a push does; own: the solver that build() returns."
    )
    shards: Count | None = Field(
        None,
        ge=1,
        le=4096,
        description="Into how many parts the parameters are divided; the nodes get them in turn; "
        "default: one for each node.",
    )
    push_every: Count = Field(1, ge=1, description="Batches between a learner's pushes.")
    pull_every: Count | None = Field(
        None,
        ge=1,
        description="Batches between pulls, a multiple of push_every; equal to it if learners send "
        "weights; default: push_every.",
    )
    staleness: Count | None = Field(
        None,
        ge=0,
        description="How many pushes a learner may be ahead of the slowest before it waits; "
        "default: parallel_sgd 0, others no bound.",
    )
    aggregate: Literal["every_push", "all"] | None = Field(
        None, description="Follows from the solver; if given, it must agree with it."
    )
    min_learners: Count | None = Field(
        None,
        ge=1,
        description="With fewer learners the training ends as FAILED; one that is being restarted "
        "counts; default: half of them, rounded up.",
    )
    learning_rate: Real | None = Field(
        None,
        gt=0,
        description="Learning rate of the server's steps, which are SGD (Adam's usual rates are too"
        " small); diloco: of its outer steps; default: the optimizer's, diloco 0.7.",
    )
    momentum: Real | None = Field(
        None,
        ge=0,
        lt=1,
        description="Momentum of the server's steps; diloco: of its outer steps, default 0.9.",
    )
    adagrad: bool | None = Field(
        None, description="downpour_sgd: a separate learning rate for each parameter."
    )
    moving_rate: Real | None = Field(
        None,
        gt=0,
        le=1,
        description="elastic_averaging: α, how far learner and center move towards each other; "
        "default: 0.9 / learners.",
    )
    timeout: Duration = Field(
        "2m",
        description="How long to wait for servers, and at the start for other learners; the build "
        "of learner 0 may take longer.",
    )
    snapshot_every: Duration = Field(
        "1m", description="How often a server writes its state, in case its node is lost."
    )

    @property
    def in_rounds(self) -> bool:
        """Return whether each learner waits for all others at every push (own: unknown here)."""
        return self.solver in ROUNDS or (self.solver == PARALLEL and not self.staleness)


@dataclass(frozen=True)
class _Traits:
    """The settings and abilities of one solver."""

    settings: tuple[str, ...]
    """The settings it uses, among those that not every solver uses."""
    at_once: bool | None
    """None: the class decides."""
    sends_weights: bool = False
    does: str = ""


PARALLEL = "parallel_sgd"
OWN = "own"
ROUNDS = ("model_averaging", "diloco")
TRAITS = {
    PARALLEL: _Traits(
        ("learning_rate", "momentum", "staleness"), False,
        does="takes one step for all learners' gradients (with staleness from 1 on, at every push)",
    ),
    "downpour_sgd": _Traits(
        ("learning_rate", "momentum", "adagrad", "staleness"), True,
        does="takes a step for every push as it arrives",
    ),
    "elastic_averaging": _Traits(
        ("moving_rate", "staleness"), True, sends_weights=True,
        does="draws learner and center towards each other at every push",
    ),
    "model_averaging": _Traits(
        (), False, sends_weights=True, does="waits for all learners, and averages their weights"
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
