"""Control while a training runs: orders of people, and the manifest's guards."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlctl.contract.names import CONTROL, attempt_dir

TUNABLE = ("lr", "batch_size", "clip_gradient_norm", "momentum", "weight_decay")
"""What `dlctl tune` changes."""


def order_file(number: int | str) -> str:
    """Return an `Order`, created exclusively by `dlctl tune` or `dlctl checkpoints save`.

    Orders are counted from 1 over the whole training.
    """
    return f"{CONTROL}/order-{number}.json"


def order_answer(number: int | str) -> str:
    """Return the `OrderAnswer` of an order, written by learner 0 when it takes effect."""
    return f"{CONTROL}/order-{number}.done.json"


def stopped_file(attempt: int) -> str:
    """Return the `Stopped` of an attempt that a guard of the manifest ended.

    Written by learner 0, or by the supervisor for programs whose reports it watches.
    """
    return f"{attempt_dir(attempt)}/stopped.json"


@dataclass(frozen=True)
class Order:
    """An order of a person to the learners while they train."""

    save: bool = False
    """Save a checkpoint now."""
    values: dict[str, float] = field(default_factory=dict)
    """New values of `lr`, `batch_size`, `clip_gradient_norm`, `momentum`, `weight_decay`."""
    asked_at: float = 0.0
    """Unix seconds."""


@dataclass(frozen=True)
class OrderAnswer:
    """The answer to an order: the step after which it took effect, in repeated attempts, too."""

    attempt: int
    step: int
    """The order took effect after this step."""
    problem: str = ""
    """Why it had no effect; empty if it had one."""


@dataclass(frozen=True)
class Plateau:
    """A metric that has to improve, or the training ends."""

    metric: str = ""
    """Its name; empty: the one by which dlctl judges the training."""
    patience: int = 0
    """Epochs, or a program's reports, that may pass without improvement; 0: dlctl's test decides.
    """
    better: str = "lower"
    """`lower` or `higher`."""


@dataclass(frozen=True)
class StopRules:
    """The guards that end a training by themselves."""

    not_a_number: bool = False
    """End as soon as the loss is NaN or infinite."""
    plateau: Plateau | None = None
    loss_spike: float | None = None
    """Roll back if the loss of a step is this many times the median of the last ones."""
    skip_batches: bool = False
    """After a roll-back leave out the batches between the checkpoint and the jump."""
    max_node_hours: float | None = None
    """The limit for all attempts together."""
    max_gpu_hours: float | None = None
    """The limit for all attempts together."""


@dataclass(frozen=True)
class Stopped:
    """The end of an attempt by a guard of the manifest."""

    kind: str
    """A `VerdictKind`."""
    step: int
    """-1 if it is not known."""
    reason: str
    """One sentence, as the beginning of another one."""
    hint: str = ""
    """One sentence: what to do next."""
