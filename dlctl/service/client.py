"""What a face gives the use cases: the local record, where to say things, and a person to ask."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dlctl.errors import DlctlError, TransportError, TransportTimeout
from dlctl.tell import SILENT, Tell

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.transport.base import Prompt

Answer = TypeVar("Answer")
LIMIT_S = 10.0
"""How long the sites have for their answers, all at the same time."""


@dataclass(frozen=True)
class Client:
    """Opens sites for a user, and knows that user's trainings."""

    store: RecordStore
    tell: Tell = SILENT
    prompt: Prompt | None = None
    """Asks the user for a password; None: nobody is there."""

    def open(self, site: str, *, may_ask: bool = True) -> Session:
        """Return an open site.

        Raises:
            SiteError
        """
        from dlctl.lifecycle import open_session
        from dlctl.sites.files import load_site

        return open_session(load_site(site), self.prompt if may_ask else None)

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
            told, mine = answer, by_site[site]
            if isinstance(told, DlctlError):
                problems[site] = told
                if at_once or may_pass(told):
                    self.tell.warn(f"{site}: {told.message}")
                told = stale(mine, told, self.store) if isinstance(told, TransportError) else mine
            known |= {record.training_id: record for record in told}
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
