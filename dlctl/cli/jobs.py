"""Commands that change something at a site: submit, halt, resume, cancel, delete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    ID,
    JSON,
    SITE,
    end_of_following,
    follow,
    open_record,
    opened,
    plain,
    print_record,
    several,
    training,
)  # fmt: skip
from dlctl.cli.deleting import delete
from dlctl.cli.manifests import (
    CPUS,
    GPUS,
    LEARNERS,
    LEARNERS_PER_NODE,
    MANIFEST,
    MEMORY,
    NODES,
    PARTITION,
    SET,
    TIME,
    alone,
    make_overrides,
)  # fmt: skip

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (submit, halt, resume, cancel, delete):
        app.command()(command)


def submit(
    manifest: Path = MANIFEST, site: str = SITE, learners: int | None = LEARNERS,
    nodes: int | None = NODES, learners_per_node: int | None = LEARNERS_PER_NODE,
    gpus: int | None = GPUS, cpus: float | None = CPUS, memory: str | None = MEMORY,
    time: str | None = TIME, partition: str | None = PARTITION, set_: list[str] = SET,
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print the log as it grows."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Submit a training and print its id; does not wait for it to run.

    Example: dlctl submit manifest.yml --site mycluster --learners 4 --time 4h
    """
    from dlctl.lifecycle import make_environment
    from dlctl.lifecycle import submit as send
    from dlctl.request.build import prepare
    from dlctl.request.request import check_can_run

    overrides = make_overrides(
        learners, nodes, learners_per_node, gpus, cpus, memory, time, partition, set_
    )
    with opened(site) as session:
        request = prepare(manifest, overrides, session.site)
        check_can_run(request)
        _say_what_is_missing(request.plan.not_in_this_version)
        output.warn_if(alone(request.plan.framework.command, request.plan.resources.learners,
                             manifest))  # fmt: skip
        make_environment(session, request.plan, output.note)
        with output.progress("sending") as on_progress:
            record = send(session, request, store := open_record(), on_progress)
        output.report(plain(record), as_json, lambda v: output.line(v["training_id"]))
        if stay:
            return end_of_following(follow(session, record, store, as_json=as_json))
    return output.hint(f"dlctl logs --follow {record.training_id}")


def _say_what_is_missing(notes: list[str]) -> None:
    for note in notes:
        output.warn(note)


def halt(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """Save a checkpoint and stop; `dlctl resume` continues.

    Example: dlctl halt digits-3k9f
    """
    from dlctl.lifecycle import halt as ask

    with training(training_id) as (session, record, store):
        output.report(plain(known := ask(session, record, store)), as_json,
                      lambda _: print_record(known))  # fmt: skip


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
    from dlctl.outputs.logs import LogReader
    from dlctl.request.build import prepare_again

    overrides = make_overrides(
        learners, nodes, learners_per_node, gpus, cpus, memory, time, partition
    )
    with training(training_id) as (session, record, store):
        known = go_on(session, record, store, lambda r: prepare_again(r, session.site), overrides,
                      new_code=code, on_line=output.note)  # fmt: skip
        _tell_what_runs(session, known, learners, code)
        output.report(plain(known), as_json, lambda _: print_record(known))
        if stay:
            reader = LogReader(known.job_dir, first_attempt=known.attempt)
            return end_of_following(follow(session, known, store, reader, as_json))
    return output.hint(f"dlctl logs --follow {known.training_id}")


def _tell_what_runs(session: Session, record: Record, learners: int | None, new_code: bool) -> None:
    """Say how the attempt differs from what the user may expect; only warn if that is unknown."""
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import changed_since_sent, read_plan

    try:
        plan = read_plan(session, record)
        changes = plan.code_changes if new_code else changed_since_sent(session, record)
    except DlctlError as error:  # the job is submitted nevertheless
        return output.warn(f"can't compare your folder with what was sent: {error.message}")
    _tell_changes(record, changes, sent=new_code)
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


def cancel(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """End a training without saving.

    Example: dlctl cancel digits-3k9f
    """
    from dlctl.lifecycle import cancel as end

    with training(training_id) as (session, record, store):
        output.report(plain(known := end(session, record, store)), as_json,
                      lambda _: print_record(known))  # fmt: skip
