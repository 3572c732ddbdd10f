"""`--dry-run`: what a command that ends or removes trainings would do, and what would be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.choosing import NOTHING, raise_lasting
from dlctl.cli.common import shown_state
from dlctl.contract import State

if TYPE_CHECKING:
    from dlctl.cli.manners.printed import WouldEnd
    from dlctl.record import Record
    from dlctl.service.client import Client

DRY_RUN = typer.Option(False, "--dry-run", "-n", help="Only say what would go.")


def ask_nothing_in_json(as_json: bool, *, answered: bool) -> None:
    """Refuse `--json` where a command would ask a question.

    Raises:
        typer.BadParameter
    """
    if as_json and not answered:
        raise typer.BadParameter("--json asks nothing: add --yes or --dry-run")


def would_cancel(mine: Client, records: Sequence[Record], as_json: bool) -> None:
    """Print what `dlctl cancel` would end, as the sites know it now.

    Raises:
        DlctlError: a site can't tell, for a reason that does not pass by itself.
    """
    known, problems = mine.refreshed(records)
    told: list[WouldEnd] = [
        {"training_id": each.training_id, "site": each.site, "state": shown_state(each),
         "would": "refuse: it has ended" if each.state.final else "cancel",
         "lost": "" if each.state.final else _lost_by_cancelling(each)}
        for each in known
    ]  # fmt: skip
    tell(told, as_json)
    raise_lasting(problems)


def tell(would: Sequence[WouldEnd], as_json: bool) -> None:
    """Print what would become of trainings."""
    rows = [[each["training_id"], each["site"], each["state"], each["would"], each["lost"]]
            for each in would]  # fmt: skip
    columns = ["training", "site", "state", "would", "lost"]
    output.report(would, as_json, lambda _: output.table(columns, rows, NOTHING))


def _lost_by_cancelling(record: Record) -> str:
    if record.state in (State.QUEUED, State.PENDING):
        return "its place in the queue"
    saves = f"dlctl {'search ' * record.is_search}halt {record.training_id}"
    return f"what it did since its newest checkpoint ({saves} saves first)"
