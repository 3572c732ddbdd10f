"""Commands that steer a training while it runs: tune, checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, JSON, training

if TYPE_CHECKING:
    from dlctl.lifecycle.orders import Ordered

_WAIT_S = 20.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(tune)
    # `dlctl checkpoints save` is the documented name; this is what people type.
    app.command("checkpoint", hidden=True)(save)


def tune(
    words: list[str] = typer.Argument(
        ..., metavar="[ID] NAME=VALUE…", show_default=False,
        help="A training id (the latest training of this folder by default), and the settings: lr, "
        "batch_size, clip_gradient_norm, momentum, weight_decay.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Change settings of a training while it runs, at the same step on all learners.

    The change is noted in the metrics, and holds for later attempts, too.

    Example: dlctl tune digits-3k9f lr=0.01 batch_size=64
    """
    from dlctl.lifecycle.orders import give_order, parse_settings

    wanted = None if "=" in words[0] else words[0]
    values = parse_settings(words if wanted is None else words[1:])
    if not values:
        raise typer.BadParameter("name at least one setting, as in lr=0.01")
    with training(wanted) as (session, record, store):
        done = give_order(session, record, store, values, wait_s=_WAIT_S)
    output.report(done, as_json, _print)


def save(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """Save a checkpoint now; the training goes on.

    Example: dlctl checkpoints save digits-3k9f
    """
    from dlctl.lifecycle.orders import give_order

    with training(training_id) as (session, record, store):
        done = give_order(session, record, store, {}, save=True, wait_s=_WAIT_S)
    output.report(done, as_json, _print)


def _print(done: Ordered) -> None:
    what = ", ".join(f"{name}={value:g}" for name, value in done.values.items())
    what = what or "a checkpoint"
    answer = done.answer
    if answer is None:
        when = "at its next step" if done.state.value == "TRAINING" else "once it trains"
        output.line(f"{done.training_id}: {what} {when} (order {done.number})")
    elif answer.problem:
        output.warn(f"{done.training_id}: {what} was refused at step {answer.step}: "
                    f"{answer.problem}")  # fmt: skip
    else:
        output.line(f"{done.training_id}: {what} since step {answer.step}" if done.values
                    else f"{done.training_id}: a checkpoint of step {answer.step}")  # fmt: skip
