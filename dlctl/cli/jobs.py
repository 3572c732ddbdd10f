"""Commands that change something at a site: tune, halt, resume, cancel, delete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.choosing import NAME, STATE, TAG, do_each
from dlctl.cli.common import (
    ID,
    IDS,
    JSON,
    client,
    plain,
    print_record,
    several,
    training,
)  # fmt: skip
from dlctl.cli.deleting import delete
from dlctl.cli.logs.following import end_of_following, follow
from dlctl.cli.logs.printing import LogLines
from dlctl.cli.manifests import (
    CPUS,
    GPUS,
    LEARNERS,
    LEARNERS_PER_NODE,
    MEMORY,
    NODES,
    PARTITION,
    TIME,
    make_overrides,
)  # fmt: skip
from dlctl.cli.manners.trying import DRY_RUN, would_cancel

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.lifecycle.orders import Ordered
    from dlctl.record import Record

_ANSWER_S = 20.0
"""How long to wait for the answer of learners that train."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (tune, halt, resume, cancel, delete):
        app.command()(command)
    # `dlctl checkpoints save` is the documented name; this is what people type.
    app.command("checkpoint", hidden=True)(save)


def halt(
    training_ids: list[str] = IDS, name: str | None = NAME, state: list[str] = STATE,
    tag: list[str] = TAG,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Save a checkpoint and stop; `dlctl resume` continues.

    Example: dlctl halt digits-3k9f
    """
    from dlctl.lifecycle import halt_all
    from dlctl.service.choose import Filter, running

    mine, wanted = client(), Filter(name, state, tag)
    do_each(mine, running(mine.store, training_ids, wanted), halt_all, as_json, wanted)


def resume(
    training_id: str | None = ID, learners: int | None = LEARNERS, nodes: int | None = NODES,
    learners_per_node: int | None = LEARNERS_PER_NODE, gpus: int | None = GPUS,
    cpus: float | None = CPUS, memory: str | None = MEMORY, time: str | None = TIME,
    partition: str | None = PARTITION,
    code: bool = typer.Option(
        False, "--code", help="Train with your folder, and its requirements, as they are now."
    ),
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print the log as it grows."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Continue from the newest checkpoint, or finish an interrupted submission.

    The options change the resources, and `--code` the program; everything else stays as submitted.

    Example: dlctl resume digits-3k9f --learners 2 --time 2h
    """
    from dlctl.lifecycle import resume as go_on
    from dlctl.logs.reader import LogReader
    from dlctl.models.use import build_again

    overrides = make_overrides(
        learners, nodes, learners_per_node, gpus, cpus, memory, time, partition
    )
    with training(training_id) as (session, record, store):
        known = go_on(session, record, store, lambda r: build_again(session, r), overrides,
                      new_code=code, on_line=output.note)  # fmt: skip
        _tell_what_runs(session, known, learners, code)
        output.report(plain(known), as_json, lambda _: print_record(known))
        if stay:
            reader = LogReader(known.job_dir, first_attempt=known.attempt)
            return end_of_following(
                follow(session, known, store, reader, LogLines(as_json=as_json))
            )
    return output.hint(f"dlctl logs --follow {known.training_id}")


def _tell_what_runs(session: Session, record: Record, learners: int | None, new_code: bool) -> None:
    """Say how the attempt differs from what the user may expect; only warn if that is unknown."""
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import changed_since_sent, read_plan, repeats_error

    try:
        plan = read_plan(session, record)
        changes = plan.code_changes if new_code else changed_since_sent(session, record)
        again = not (new_code or changes) and repeats_error(session, record)
    except DlctlError as error:  # the job is submitted nevertheless
        return output.warn(f"can't compare your folder with what was sent: {error.message}")
    _tell_changes(record, changes, sent=new_code)
    if again:
        output.warn(
            f"an error of the program ended attempt {record.attempt - 1}, and the same code runs "
            f"again (a mended one: dlctl halt {record.training_id}, then "
            f"dlctl resume --code {record.training_id})"
        )
    if learners not in (None, plan.resources.learners):
        output.warn("another dlctl has resumed it in the meantime: learners is now "
                    f"{plan.resources.learners}")  # fmt: skip
    return None


def _tell_changes(record: Record, changes: list[str], *, sent: bool) -> None:
    """Name the files in which the user's folder differs from the code that ran before."""
    if not changes:
        return
    if sent:
        output.note(f"new code: {several(changes)}")
        return
    folder = Path(record.manifest_path).parent
    output.warn(f"{folder} differs from what was sent: {several(changes)}; the training continues "
                f"with the files that were sent (the new ones: dlctl halt {record.training_id}, "
                f"then dlctl resume --code {record.training_id})")  # fmt: skip


def cancel(
    training_ids: list[str] = IDS, name: str | None = NAME, state: list[str] = STATE,
    tag: list[str] = TAG,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """End trainings without saving.

    Example: dlctl cancel digits-3k9f
    """
    from dlctl.lifecycle import cancel_all
    from dlctl.service.choose import Filter, running

    mine, wanted = client(), Filter(name, state, tag)
    meant = running(mine.store, training_ids, wanted)
    if dry_run:
        return would_cancel(mine, meant, as_json)
    return do_each(mine, meant, cancel_all, as_json, wanted)


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
        done = give_order(session, record, store, values, wait_s=_ANSWER_S)
    output.report(done, as_json, _print_order)


def save(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """Save a checkpoint now; the training goes on.

    Example: dlctl checkpoints save digits-3k9f
    """
    from dlctl.lifecycle.orders import give_order

    with training(training_id) as (session, record, store):
        done = give_order(session, record, store, {}, save=True, wait_s=_ANSWER_S)
    output.report(done, as_json, _print_order)


def _print_order(done: Ordered) -> None:
    what = ", ".join(f"{name}={value:g}" for name, value in done.values.items())
    what = what or "a checkpoint"
    answer = done.answer
    if answer is None:
        when = "at its next step" if done.state.value == "TRAINING" else "once it trains"
        if done.state.final:
            when = f"once you resume it; it is {done.state}"
        output.line(f"{done.training_id}: {what} {when} (order {done.number})")
    elif answer.problem:
        output.warn(f"{done.training_id}: {what} was refused at step {answer.step}: "
                    f"{answer.problem}")  # fmt: skip
    else:
        output.line(f"{done.training_id}: {what} since step {answer.step}" if done.values
                    else f"{done.training_id}: a checkpoint of step {answer.step}")  # fmt: skip
