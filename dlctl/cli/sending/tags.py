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
    from dlctl.cli.sending.submit import checked_tags
    from dlctl.service.choose import Filter, chosen

    store = open_record()
    new = checked_tags(add or [])
    known = chosen(store, training_ids, Filter(name, state, with_tag))
    if new or remove:
        store.tag(known, lambda tags: _changed(tags, new, remove or []))
        known = store.find_all(each.training_id for each in known) if known else []
    rows = [[each.training_id, ", ".join(each.tags) or "-"] for each in known]
    output.report([plain(each) for each in known], as_json,
                  lambda _: output.table(["training", "tags"], rows, NOTHING))  # fmt: skip


def _changed(tags: list[str], new: list[str], old: list[str]) -> list[str]:
    return list(dict.fromkeys([*(each for each in tags if each not in old), *new]))
