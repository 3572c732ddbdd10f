"""`dlctl adopt`: a record of trainings that this machine has not submitted, or has forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON, complete_sites, open_record, opened
from dlctl.service.describe import plain
from dlctl.service.made import only_copies

if TYPE_CHECKING:
    from dlctl.upkeep.adopt import Adopted


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(adopt)


def adopt(
    site: str = typer.Argument(..., metavar="SITE", help="The site.",
                               autocompletion=complete_sites),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Rebuild the local record from a site's job directories: on another laptop, or after a loss.

    What the record has already stays as it is. A record that is damaged is kept beside the new one.

    Example: dlctl adopt mycluster
    """
    from dlctl.upkeep.adopt import adopt as take_over

    store = open_record()
    with opened(site) as session:
        if aside := store.repair():
            output.warn(
                f"the local record was damaged; it is kept as {aside.kept_as}, and "
                f"{aside.saved} of its trainings were saved: adopt each of your sites"
            )
        found = take_over(session, store)
    for each in found.damaged:
        output.warn(f"left out {found.root}/jobs/{each.training_id}: {each.why}")
    shown = {
        "site": found.site,
        "added": [plain(each) for each in found.added],
        "known": found.known,
        "damaged": [{"training_id": d.training_id, "why": d.why} for d in found.damaged],
    }
    output.report(shown, as_json, lambda _: _print(found))


def _print(found: Adopted) -> None:
    from dlctl.units import counted

    rows = [[each.training_id, each.created_at[:10], str(each.attempt), str(each.state)]
            for each in reversed(found.added)]  # fmt: skip
    if rows:
        output.table(["training", "created", "attempt", "state"], rows)
    known = f"; {len(found.known)} known already" if found.known else ""
    output.note(f"adopted {counted(len(rows), 'training')} of {found.site}{known}")
    for each in found.added:
        if only := only_copies(each):
            output.warn(f"{each.training_id}: not fetched to this machine: {only}")
    if rows:
        output.hint(f"dlctl list --site {found.site}")
