"""The client of the use cases: the local record, a person to ask, which trainings are meant."""

from __future__ import annotations

import fnmatch
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dlctl.contract import State
from dlctl.errors import DlctlError, Misused, TransportError, TransportTimeout
from dlctl.tell import SILENT, Tell
from dlctl.units import unix_seconds

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.service.pool import Pool
    from dlctl.transport.base import Prompt

Answer = TypeVar("Answer")
LIMIT_S = 10.0
"""The time that the sites have for their answers, all at once."""


def open_site(name: str, prompt: Prompt | None = None) -> Session:
    """Return an open site, by a connection of its own.

    Raises:
        SiteError
    """
    from dlctl.lifecycle import open_session
    from dlctl.sites.files import load_site

    return open_session(load_site(name), prompt)


@dataclass(frozen=True)
class Client:
    """Opens sites for a user, and knows that user's trainings."""

    store: RecordStore
    tell: Tell = SILENT
    prompt: Prompt | None = None
    """Asks the user for a password; None: nobody is there."""
    pool: Pool | None = None
    """Keeps connections open for the next call; None: each call opens its own."""

    def open(self, site: str, *, may_ask: bool = True, follows: bool = False) -> Session:
        """Return an open site.

        Args:
            follows: For as long as something is followed; see `Pool.lend`.

        Raises:
            SiteError
        """
        if self.pool is not None:
            return self.pool.lend(site, follows=follows)
        return open_site(site, self.prompt if may_ask else None)

    def open_to_watch(self, site: str) -> Session:
        """Return an open site; only the main thread asks, as others look while it draws."""
        return self.open(site, may_ask=threading.current_thread() is threading.main_thread())

    def each_site(
        self, names: Iterable[str], ask: Callable[[Session], Answer]
    ) -> Iterator[tuple[str, Answer | DlctlError]]:
        """Yield each site's name with its answer, or with the error that it ended with."""
        for name in dict.fromkeys(names):
            yield name, self._answer(name, ask)

    def sites_at_once(
        self, names: Iterable[str], ask: Callable[[Session], Answer]
    ) -> Iterator[tuple[str, Answer | DlctlError]]:
        """Yield what `each_site` does, the fastest site first.

        Asks nothing at the terminal: a site that wants a password counts as one that does not
        answer.
        """
        waiting = set(names)
        answers: queue.SimpleQueue[tuple[str, Answer | DlctlError]] = queue.SimpleQueue()
        for name in waiting:
            threading.Thread(
                target=lambda site: answers.put((site, self._answer(site, ask, may_ask=False))),
                args=(name,), name=f"dlctl-ask-{name}", daemon=True,
            ).start()  # fmt: skip
        deadline = time.monotonic() + LIMIT_S
        while waiting:
            try:
                name, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                name, answer = min(waiting), TransportTimeout(f"no answer within {LIMIT_S:g} s")
            waiting.discard(name)
            yield name, answer

    def _answer(
        self, site: str, ask: Callable[[Session], Answer], *, may_ask: bool = True
    ) -> Answer | DlctlError:
        try:
            with closing(self.open(site, may_ask=may_ask)) as session:
                return ask(session)
        except DlctlError as error:
            return error

    def at_sites(
        self, records: Sequence[Record],
        do_all: Callable[[Session, list[Record], RecordStore], list[Answer | DlctlError]],
    ) -> tuple[list[Answer], list[DlctlError]]:  # fmt: skip
        """Do something with the trainings of each site, by one connection a site.

        What fails for one site leaves the others alone.

        Returns:
            What was done, and the failures.
        """
        done: list[Answer] = []
        failures: list[DlctlError] = []
        by_site = _by_site(records)
        for _, answers in self.each_site(
            by_site, lambda s: do_all(s, by_site[s.site.name], self.store)
        ):
            for answer in [answers] if isinstance(answers, DlctlError) else answers:
                if isinstance(answer, DlctlError):
                    failures.append(answer)
                else:
                    done.append(answer)
        return done, failures

    def refreshed(
        self, records: Sequence[Record], *, at_once: bool = False
    ) -> tuple[list[Record], dict[str, DlctlError]]:
        """Return the records as their sites know them now, and by site why it did not answer.

        Records of a site that does not answer are stale; problems that may pass have been told.

        Args:
            at_once: Ask all sites at the same time, and nothing at the terminal; tell all problems.
        """
        from dlctl.lifecycle import refresh, stale

        by_site = _by_site(records)
        known: dict[str, Record] = {}
        problems: dict[str, DlctlError] = {}
        ask_all = self.sites_at_once if at_once else self.each_site
        for site, answer in ask_all(
            sorted(by_site), lambda s: refresh(s, by_site[s.site.name], self.store)
        ):
            mine = answer if isinstance(answer, list) else by_site[site]
            if isinstance(answer, DlctlError):
                problems[site] = answer
                if at_once or may_pass(answer):
                    self.tell.warn(f"{site}: {answer.message}")
            if isinstance(answer, TransportError):
                mine = stale(mine, answer, self.store)
            known |= {record.training_id: record for record in mine}
        return [known[record.training_id] for record in records], problems


def may_pass(error: DlctlError) -> bool:
    """Return whether a failure may pass by itself; a changed host key does not."""
    return isinstance(error, TransportError) and error.transient


def one_by_one(
    do: Callable[[Session, Record, RecordStore], Answer],
) -> Callable[[Session, list[Record], RecordStore], list[Answer | DlctlError]]:
    """Return what `at_sites` takes for something that is done with one training at a time."""

    def do_all(
        session: Session, records: list[Record], store: RecordStore
    ) -> list[Answer | DlctlError]:
        answers: list[Answer | DlctlError] = []
        for record in records:
            try:
                answers.append(do(session, record, store))
            except DlctlError as error:  # the others are tried all the same
                answers.append(error)
        return answers

    return do_all


def _by_site(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.site, []).append(record)
    return found


TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True)
class Filter:
    """A filter of trainings.

    Args:
        name: A pattern of the shell, for the name or the id; None: any.
        states: Words; empty: any.
        tags: Words that it must have, all of them.
        since_at: Only those that were submitted since then (Unix seconds).

    Raises:
        Misused: a word is no state.
    """

    name: str | None = None
    states: Sequence[str] | None = ()
    tags: Sequence[str] | None = ()
    since_at: float | None = None

    def __post_init__(self) -> None:
        known = [str(state) for state in State]
        for word in self.states or ():
            if word.upper() not in known:
                raise Misused(f"{word!r} is no state; there are {', '.join(known)}")

    def __bool__(self) -> bool:
        named = (self.name, self.since_at) != (None, None)
        return named or bool(self.states or self.tags)

    def fits(self, record: Record) -> bool:
        """Return whether a training fits."""
        name = self.name
        named = name is None or any(
            fnmatch.fnmatchcase(text, name) for text in (record.name, record.training_id)
        )
        in_state = not self.states or str(record.state) in map(str.upper, self.states)
        since_at = self.since_at or 0.0
        is_new = not since_at or (unix_seconds(record.created_at) or 0.0) >= since_at
        return named and in_state and is_new and set(self.tags or ()) <= set(record.tags)


def chosen(store: RecordStore, ids: Sequence[str] | None, wanted: Filter) -> list[Record]:
    """Return the trainings with these ids; without ids those that fit, or the folder's latest.

    Raises:
        Misused: there are ids and a filter.
        RecordError: an id is nobody's, or several trainings'.
    """
    if ids and wanted:
        raise Misused("either ids, or --name, --state and --tag, say which trainings are meant")
    if not wanted:
        return store.find_all(ids or [])
    return [record for record in store.all() if wanted.fits(record)]


def checked_tags(tags: Sequence[str] | None) -> list[str]:
    """Return the tags, each once.

    Raises:
        Misused: one has letters that no tag has.
    """
    for tag in tags or ():
        if not TAG.fullmatch(tag):
            raise Misused(f"{tag!r} is no tag: up to 40 letters, digits, `.`, `_`, `-`")
    return list(dict.fromkeys(tags or ()))


def tag(
    store: RecordStore, records: list[Record], add: Sequence[str] | None,
    remove: Sequence[str] | None,
) -> list[Record]:  # fmt: skip
    """Give tags to trainings, and take some away; return the trainings as they are then.

    Raises:
        Misused: a new one has letters that no tag has.
    """
    new, old = checked_tags(add), remove or ()
    if not records or not (new or old):
        return records
    store.reword(records, "tags", lambda tags: list(
        dict.fromkeys([*(each for each in tags if each not in old), *new])))  # fmt: skip
    return store.find_all(each.training_id for each in records)


def note(store: RecordStore, record: Record, text: str = "", remove: int = 0) -> Record:
    """Add a remark to a training, behind today's day; return the training as it is then.

    Args:
        text: One line; empty: nothing is added.
        remove: The number of the remark to take away, from 1; 0: none.

    Raises:
        Misused: the text has control characters, or no remark has that number.
    """
    if not text.isprintable():
        raise Misused("a note is one line without control characters")
    if remove > len(record.notes):
        raise Misused(f"{record.training_id} has {len(record.notes)} notes")
    gone = record.notes[remove - 1] if remove else None
    added = [f"{time.strftime('%Y-%m-%d')} {text.strip()}"] if text.strip() else []
    store.reword([record], "notes", lambda notes: [*(n for n in notes if n != gone), *added])
    return store.find(record.training_id)


def running(store: RecordStore, ids: Sequence[str] | None, wanted: Filter) -> list[Record]:
    """Return what `chosen` does; of those that fit, only the ones that have not ended."""
    found = chosen(store, ids, wanted)
    return [each for each in found if not each.state.final] if wanted else found
