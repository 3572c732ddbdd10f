"""`dlctl tag`: the user's words for trainings."""

from __future__ import annotations

import typer

from dlctl.cli import output
from dlctl.cli.choosing import NAME, NOTHING, STATE, TAG, complete_tags
from dlctl.cli.common import IDS, JSON, open_record
from dlctl.service.describe import plain


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tag)


def tag(
    training_ids: list[str] = IDS, name: str | None = NAME, state: list[str] = STATE,
    with_tag: list[str] = TAG,
    add: list[str] = typer.Option(None, "--add", metavar="WORD", help="Give this tag."),
    remove: list[str] = typer.Option(None, "--remove", metavar="WORD", help="Take this tag away.",
                                     autocompletion=complete_tags),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show the tags of trainings, give them some, or take some away; asks no site.

    Example: dlctl tag digits-3k9f --add baseline
    """
    from dlctl.service import choose

    store = open_record()
    meant = choose.chosen(store, training_ids, choose.Filter(name, state, with_tag))
    known = choose.tag(store, meant, add, remove)
    rows = [[each.training_id, ", ".join(each.tags) or "-"] for each in known]
    output.report([plain(each) for each in known], as_json,
                  lambda _: output.table(["training", "tags"], rows, NOTHING))  # fmt: skip
