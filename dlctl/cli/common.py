"""What the commands share: options, open sites, and how a training is shown."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dlctl.cli import output
from dlctl.contract.ground.amounts import format_span

if TYPE_CHECKING:
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session
    from dlctl.outputs.looks import Looks, Reader
    from dlctl.record import Record, RecordStore

R = TypeVar("R", bound="Reader")
Answer = TypeVar("Answer")


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
IDS = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Training ids; the latest training of this folder by default.",
)  # fmt: skip
JSON = typer.Option(False, "--json", help="Print JSON.")
SITE = typer.Option(
    ..., "--site", "-s", autocompletion=complete_sites, default_factory=default_site,
    show_default=False,
    help="The site to run on, one of `dlctl sites list`; that of `dlctl config site`, or `local`.",
)  # fmt: skip


def open_record() -> RecordStore:
    """Return the local record, which warns about what it can't read or write."""
    from dlctl.record import RecordStore

    return RecordStore(tell=output.warn)


_SEVERAL = 5


@contextmanager
def opened(site_name: str, may_ask: bool = True) -> Iterator[Session]:
    """Open a site, and close it at the end; `may_ask` for a password at the terminal."""
    from dlctl.lifecycle import open_session
    from dlctl.sites.files import load_site

    session = open_session(load_site(site_name), output.ask if may_ask else None)
    try:
        yield session
    finally:
        session.close()


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
    store = open_record()
    record = store.find_search(wanted) if is_search else store.find(wanted)
    with opened(record.site) as session:
        yield session, record, store


@contextmanager
def looks(
    records: Sequence[Record], make_reader: Callable[[Record], R], store: RecordStore | None = None,
    **how: Any,
) -> Iterator[Looks[R]]:  # fmt: skip
    """Look at trainings again and again; the connections are closed at the end."""
    from dlctl.lifecycle import open_session
    from dlctl.outputs.looks import Looks
    from dlctl.sites.files import load_site

    looking = Looks(
        records, store or open_record(), lambda site: open_session(load_site(site), output.ask),
        make_reader, **how,
    )  # fmt: skip
    try:
        yield looking
    finally:
        looking.close()


def refreshed(records: list[Record], store: RecordStore) -> tuple[list[Record], list[DlctlError]]:
    """Return the records as their sites know them now, and why sites did not answer.

    Records of a site that does not answer are stale; problems that may pass have been told.
    """
    from dlctl.errors import DlctlError, TransportError
    from dlctl.lifecycle import refresh, stale

    known: dict[str, Record] = {}
    problems: list[DlctlError] = []
    for site_name in sorted({record.site for record in records}):
        mine = [record for record in records if record.site == site_name]
        try:
            with opened(site_name) as session:
                answers = refresh(session, mine, store)
        except TransportError as error:
            problems.append(error)
            answers = stale(mine, error, store)
            if error.transient:
                output.warn(f"{site_name}: {error.message}")
        except DlctlError as error:
            problems.append(error)
            answers = mine
        known |= {record.training_id: record for record in answers}
    return [known[record.training_id] for record in records], problems


def ago(seconds_ago: float) -> str:
    """Return `3 min ago`."""
    return f"{format_span(seconds_ago)} ago"


UNKNOWN_IF_0 = ("seen_at", "started_at", "ended_at", "epochs", "starts_at", "ends_at")
"""Fields of a record that are null in JSON if nobody knows them."""


def plain(record: Record) -> dict[str, Any]:
    """Return a record as `--json` prints it: objects as objects, and times in Unix seconds."""
    import dataclasses

    known = dataclasses.asdict(record)
    return (
        known
        | {name: known[name] or None for name in UNKNOWN_IF_0}
        | {
            "state": str(record.state),
            "created_at": unix_seconds(record.created_at),
            "overrides": from_json(record.overrides),
        }
    )


def unix_seconds(iso_time: str) -> float | None:
    """Return the time that a record or plan holds as ISO 8601; None if it holds none."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(iso_time).timestamp()
    except ValueError:
        return None


def from_json(text: str) -> Any:
    """Return what a JSON text holds; None if it can't be read."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return None


def shown_state(record: Record) -> str:
    """Return the state, and for how long it is stale."""
    if record.stale_since is None:
        return str(record.state)
    return f"{record.state} (stale for {format_span(time.time() - record.stale_since)})"


def print_record(record: Record) -> None:
    """Print one training in a few lines, and what to do next."""
    noun = "search" if record.is_search else "training"
    output.fields({
        noun: record.training_id, "state": shown_state(record), "reason": record.reason,
        "site": record.site, "attempt": record.attempt, "job": record.job_id,
    })  # fmt: skip
    if record.hint:
        output.advice(record.hint)


def several(names: Sequence[str]) -> str:
    """Return `a, b, c, d, e and 7 more`."""
    more = f" and {len(names) - _SEVERAL} more" if len(names) > _SEVERAL else ""
    return ", ".join(names[:_SEVERAL]) + more


def folder_name(path: Path) -> str:
    """Return a path as a person would type it here."""
    for start, short in ((Path.cwd(), "."), (Path.home(), "~")):
        if path.is_relative_to(start):
            return f"{short}/{path.relative_to(start)}"
    return str(path)


LIMIT_S = 10.0
"""How long the sites have for their answers, all at the same time."""


def ask_all(
    names: Iterable[str], ask: Callable[[Session], Answer]
) -> Iterator[tuple[str, Answer | DlctlError]]:
    """Yield each site's name with its answer, or with the error that it ended with.

    Asks nothing at the terminal: a site that wants a password counts as one that does not answer.
    """
    from dlctl.errors import TransportTimeout

    waiting = set(names)
    answers: queue.SimpleQueue[tuple[str, Answer | DlctlError]] = queue.SimpleQueue()
    for name in waiting:
        threading.Thread(
            target=_ask, args=(name, ask, answers), name=f"dlctl-ask-{name}", daemon=True
        ).start()
    deadline = time.monotonic() + LIMIT_S
    while waiting:
        try:
            name, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            name, answer = min(waiting), TransportTimeout(f"no answer within {LIMIT_S:g} s")
        waiting.discard(name)
        yield name, answer


def _ask(
    name: str, ask: Callable[[Session], Answer],
    answers: queue.SimpleQueue[tuple[str, Answer | DlctlError]],
) -> None:  # fmt: skip
    from dlctl.errors import DlctlError

    try:
        with opened(name, may_ask=False) as session:
            answers.put((name, ask(session)))
    except DlctlError as error:
        answers.put((name, error))
