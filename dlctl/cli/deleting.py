"""`dlctl delete`: asks first, and names what was not fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.choosing import NAME, NOTHING, STATE, TAG, tell_failures
from dlctl.cli.common import JSON, client, complete_ids
from dlctl.cli.made import lost_by_deletion
from dlctl.cli.manners.trying import DRY_RUN, ask_nothing_in_json, tell
from dlctl.errors import DlctlError

if TYPE_CHECKING:
    from dlctl.cli.manners.printed import Deleted, WouldEnd
    from dlctl.record import Record
    from dlctl.service.client import Client


def delete(
    training_ids: list[str] = typer.Argument(
        None, metavar="ID", autocompletion=complete_ids, show_default=False,
        help="Training ids; the latest training of this folder by default.",
    ),
    name: str | None = NAME,
    state: list[str] = STATE,
    tag: list[str] = TAG,
    yes: bool = typer.Option(
        False, "--yes", "-y", help="Don't ask; needs an id, --name, --state or --tag; required "
        "without a terminal.",
    ),
    forget: bool = typer.Option(
        False, "--forget", help="Remove only the local record; the files on the site stay."
    ),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Delete trainings that have ended, with their job directories and local records; asks first.

    Example: dlctl delete digits-3k9f words-7h2m --yes
    """
    from dlctl.service.choose import Filter, chosen

    ask_nothing_in_json(as_json, answered=yes or dry_run)
    wanted = Filter(name, state, tag)
    if yes and not wanted and not (training_ids and all(each.strip() for each in training_ids)):
        raise typer.BadParameter("--yes needs the id of each training: dlctl delete ID --yes")
    mine = client()
    records = chosen(mine.store, training_ids, wanted)
    if not records:
        return output.report([], as_json, lambda _: output.note(NOTHING))
    if not (forget or yes) or dry_run:
        records, _ = mine.refreshed(records)
    if dry_run:
        return _print_what_would_go(records, forget, as_json)
    if not (yes or _confirmed(records, forget)):
        return output.note("nothing was deleted")
    deleted, failures = _delete_all(mine, records, forget)
    told: list[Deleted] = [{"training_id": r.training_id, "deleted": True} for r in deleted]
    if told:
        verb = "forgot" if forget else "deleted"
        names = [f"{verb} {r.training_id}" for r in deleted]
        output.report(told if len(records) > 1 else told[0], as_json, lambda _: output.lines(names))
    return tell_failures(failures)


def _print_what_would_go(records: list[Record], forget: bool, as_json: bool) -> None:
    told: list[WouldEnd] = [
        {"training_id": each.training_id, "site": each.site, "state": str(each.state),
         "would": "refuse: it has not ended" if not (each.state.final or forget) else
         "forget" if forget else "delete", "lost": _lost(each, forget)}
        for each in records
    ]  # fmt: skip
    tell(told, as_json)


def _lost(record: Record, forget: bool) -> str:
    return "nothing is lost: its files on the site stay" if forget else lost_by_deletion(record)


def _confirmed(records: list[Record], forget: bool) -> bool:
    """Ask at the terminal.

    Raises:
        typer.BadParameter: there is none.
    """
    for record in records:
        output.note(f"{record.training_id} ({record.state} on {record.site}): "
                    f"{_lost(record, forget)}")  # fmt: skip
    which = "it" if len(records) == 1 else f"these {len(records)}"
    return output.agreed(f"{'forget' if forget else 'delete'} {which}?", "dlctl delete")


def _delete_all(
    mine: Client, records: list[Record], forget: bool
) -> tuple[list[Record], list[DlctlError]]:
    """Delete the trainings that can be deleted; return them, and why the others stay."""
    from dlctl.lifecycle import delete_all
    from dlctl.outputs.metrics.cache import forget as forget_metrics

    deleted, failures = records, list[DlctlError]()
    if forget:
        mine.store.remove(*(record.training_id for record in records))
    else:
        deleted, failures = mine.at_sites(records, delete_all)
    for record in deleted:
        forget_metrics(record.training_id)
    return deleted, failures
