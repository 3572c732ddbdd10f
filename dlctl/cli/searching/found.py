"""Which search a command is about."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import typer

from dlctl.cli.common import complete_ids, training

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore

SEARCH_ID = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Id of a search, or a unique beginning or end of it; the latest search of this folder by "
    "default.",
)  # fmt: skip


def searched(
    wanted: str | None,
) -> AbstractContextManager[tuple[Session, Record, RecordStore]]:
    """Find a search, by default the latest of this folder, and open its site."""
    return training(wanted, is_search=True)
