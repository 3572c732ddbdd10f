"""What the commands share: options, open sites, and how a training is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.contract.ground.amounts import format_span

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.service.client import Client


def complete_ids(incomplete: str) -> list[str]:
    """Return the training ids with this beginning, newest first, for shell completion."""
    from dlctl.record import RecordStore

    ids = [record.training_id for record in reversed(RecordStore().all())]
    return [training_id for training_id in ids if training_id.startswith(incomplete)]


def complete_sites(incomplete: str) -> list[str]:
    """Return the sites with this beginning, for shell completion."""
    from dlctl.sites.files import list_sites

    return [site.name for site in list_sites() if site.name.startswith(incomplete)]


def default_site() -> str:
    """Return the site of a command without `--site`."""
    from dlctl.settings import setting

    return setting("site")[0]


ID = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Training id, or a unique beginning or end of it; the latest training of this folder by "
    "default.",
)  # fmt: skip
SEARCH_ID = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Id of a search, or a unique beginning or end of it; the latest search of this folder by "
    "default.",
)  # fmt: skip
IDS = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Training ids; the latest training of this folder by default.",
)  # fmt: skip
JSON = typer.Option(False, "--json", help="Print JSON.")
DRY_RUN = typer.Option(False, "--dry-run", "-n", help="Only say what would go.")
SITE = typer.Option(
    ..., "--site", "-s", autocompletion=complete_sites, default_factory=default_site,
    show_default=False,
    help="The site to run on, one of `dlctl sites list`; that of `dlctl config site`, or `local`.",
)  # fmt: skip


def open_record() -> RecordStore:
    """Return the local record, which warns about what it can't read or write."""
    from dlctl.record import RecordStore

    return RecordStore(tell=output.warn)


def client() -> Client:
    """Return what the use cases need of this terminal and its user."""
    from dlctl.service.client import Client

    return Client(open_record(), output.Shown(), output.ask)


def opened(site: str) -> closing[Session]:
    """Return a site that is open inside a `with` block."""
    return closing(client().open(site))


def ask_nothing_in_json(as_json: bool, *, answered: bool) -> None:
    """Refuse `--json` where a command would ask a question.

    Raises:
        typer.BadParameter
    """
    if as_json and not answered:
        raise typer.BadParameter("--json asks nothing: add --yes or --dry-run")


def seconds(text: str, option: str) -> int:
    """Return the duration that an option names.

    Raises:
        Misused: it is none.
    """
    from dlctl.errors import Misused
    from dlctl.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise Misused(str(error), option=option) from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file or folder that the user has named.

    Raises:
        ResultsError: it can't be written.
    """
    from dlctl.errors import ResultsError

    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ResultsError(
            f"{path} can't be written: {why}", hint="name another place, or make room there"
        ) from error


@contextmanager
def training(
    wanted: str | None, is_search: bool = False
) -> Iterator[tuple[Session, Record, RecordStore]]:
    """Find a training, or a search, and open its site."""
    mine = client()
    record = mine.store.find_search(wanted) if is_search else mine.store.find(wanted)
    with closing(mine.open(record.site)) as session:
        yield session, record, mine.store


searched = partial(training, is_search=True)
"""Find a search, by default the latest of this folder, and open its site."""


def ago(seconds_ago: float) -> str:
    """Return `3 min ago`."""
    return f"{format_span(seconds_ago)} ago"


def print_record(record: Record) -> None:
    """Print one training in a few lines, and what to do next."""
    noun = "search" if record.is_search else "training"
    output.fields({
        noun: record.training_id, "state": record.state_in_words, "reason": record.reason,
        "site": record.site, "attempt": record.attempt, "job": record.job_id,
    })  # fmt: skip
    if record.hint:
        output.advice(record.hint)


def folder_name(path: Path) -> str:
    """Return a path as a person would type it here."""
    for start, short in ((Path.cwd(), "."), (Path.home(), "~")):
        if path.is_relative_to(start):
            return f"{short}/{path.relative_to(start)}"
    return str(path)
