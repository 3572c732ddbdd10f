"""Commands that only read: status, show, fetch; `list` is in `listing`, `logs` in its room."""

from __future__ import annotations

import typer

from dlctl.cli import output
from dlctl.cli.choosing import NAME, NOTHING, STATE, TAG, raise_lasting, whole
from dlctl.cli.common import (
    ID,
    IDS,
    JSON,
    client,
    print_record,
    training,
)  # fmt: skip
from dlctl.cli.fetch import fetch
from dlctl.cli.manners.pager import paged
from dlctl.cli.states import listing
from dlctl.service.describe import plain


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(listing.list_)
    for command in (status, show, fetch):
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
    from dlctl.service.choose import Filter, chosen

    mine = client()
    known, problems = mine.refreshed(chosen(mine.store, training_ids, Filter(name, state, tag)))
    many = [[r.training_id, r.state_in_words, r.reason] for r in known]
    output.report(whole([plain(r) for r in known]), as_json,
                  lambda _: print_record(known[0]) if len(known) == 1 else
                  output.table(["training", "state", "reason"], many, NOTHING))  # fmt: skip
    raise_lasting(problems)


def show(
    training_id: str | None = ID,
    script: bool = typer.Option(False, "--script", help="Print the batch script that was sent."),
    everything: bool = typer.Option(
        False, "--all", "-a", help="Print all that is known: plan, learners, metrics, servers."
    ),
    as_json: bool = JSON,
) -> None:
    """Show the story of one training on one screen: state, why, progress, what was saved.

    `--all` prints everything: the plan, a row for each learner, their metrics.

    Example: dlctl show digits-3k9f --all
    """
    from dlctl.cli.states.show_all import print_details
    from dlctl.cli.states.story import print_story
    from dlctl.service.describe import describe

    with training(training_id) as (session, record, store):
        if script:
            from dlctl.lifecycle import read_script

            text = read_script(session, record)
            with paged(not as_json):
                return output.report({"script": text}, as_json, lambda _: output.document(text))
        details = describe(session, record, store, output.Shown())
    with paged(everything and not as_json):
        return output.report(details, as_json, print_details if everything else print_story)
