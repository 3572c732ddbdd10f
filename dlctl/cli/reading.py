"""Commands that only read: status, show, logs, fetch; `list` is in `listing`."""

from __future__ import annotations

import typer

from dlctl.cli import listing, output
from dlctl.cli.choosing import NAME, NOTHING, STATE, TAG, chosen, fitting, whole
from dlctl.cli.common import (
    ID,
    IDS,
    JSON,
    end_of_following,
    follow,
    open_record,
    plain,
    print_pieces,
    print_record,
    refreshed,
    shown_state,
    training,
)  # fmt: skip
from dlctl.cli.fetching.fetch import fetch


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(listing.list_)
    for command in (status, show, logs, fetch):
        app.command()(command)


def status(
    training_ids: list[str] = IDS,
    name: str | None = NAME,
    state: list[str] = STATE,
    tag: list[str] = TAG,
    as_json: bool = JSON,
) -> None:
    """Ask the sites for the state of trainings.

    Example: dlctl status digits-3k9f
    """
    store = open_record()
    known, problems = refreshed(chosen(store, training_ids, fitting(name, state, tag)), store)
    many = [[r.training_id, shown_state(r), r.reason] for r in known]
    output.report(whole([plain(r) for r in known]), as_json,
                  lambda _: print_record(known[0]) if len(known) == 1 else
                  output.table(["training", "state", "reason"], many, NOTHING))  # fmt: skip
    # Such as a changed host key: waiting heals nothing.
    lasting = [problem for problem in problems if not getattr(problem, "transient", False)]
    for problem in lasting[1:]:
        output.warn(problem.message)
    if lasting:
        raise lasting[0]


def show(
    training_id: str | None = ID,
    script: bool = typer.Option(False, "--script", help="Print the batch script that was sent."),
    as_json: bool = JSON,
) -> None:
    """Show everything about one training: plan, learners, and why it ended.

    Example: dlctl show digits-3k9f
    """
    from dlctl.cli.show import gather, print_details

    with training(training_id) as (session, record, store):
        if script:
            from dlctl.lifecycle import read_script

            text = read_script(session, record)
            return output.report({"script": text}, as_json, lambda _: output.raw(text))
        details = gather(session, record, store)
    return output.report(details, as_json, print_details)


def logs(
    training_id: str | None = ID,
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print new lines."),
    learner: int | None = typer.Option(None, "--learner", "-l", min=0, help="Only this learner."),
    tail: int | None = typer.Option(
        None, "--tail", "-n", min=0,
        help="Only the last so many lines of each log of the newest attempt.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print each line as a JSON object."),
) -> None:  # fmt: skip
    """Print the logs, merged by time; `--follow` stays until the training ends.

    A lost connection is opened again. Tracebacks are shortened to the lines of
    your program; `--debug` and `--json` print everything.

    Example: dlctl logs --follow
    """
    from dlctl.lifecycle import check_learner
    from dlctl.outputs.logs import LogReader, read

    with training(training_id) as (session, record, store):
        check_learner(session, record, learner)
        reader = LogReader(record.job_dir, learner, 1 if tail is None else record.attempt)
        if tail is not None:
            reader.begin_at_tail(session.transport, tail)
        if stay:
            end_of_following(follow(session, record, store, reader, as_json=as_json))
        else:
            if not print_pieces(read(session.transport, reader), as_json) and tail != 0:
                who = "" if learner is None else f"learner {learner} of "
                yet = "" if record.state.final else " yet"
                output.note(f"{who}{record.training_id} ({record.state}) has printed nothing{yet}")
