"""A training as an object, and a search, which is one with trials."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dlctl.contract import State
from dlctl.errors import Misused, TrainingFailed
from dlctl.series.columns import Columns, columns_of
from dlctl.service import verbs
from dlctl.service.client import Filter, tag

if TYPE_CHECKING:
    from dlctl.api.models import StoredModel
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.service.client import Client

J = TypeVar("J", bound="Training")
_FRESH_S = 1.0
"""For how long an answer of a site counts as new."""
_FIRST_S, _SLOWEST_S, _SLOWER = 0.5, 5.0, 1.3
_ORDER = list(State)


class Training:
    """One training.

    Args:
        record: What the local record knows of it.
        mine: What opens its site.
    """

    def __init__(self, record: Record, mine: Client) -> None:
        self.record, self._mine = record, mine
        self._asked_at = float("-inf")

    # What it is -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Return its id, which is never used again."""
        return self.record.training_id

    @property
    def name(self) -> str:
        """Return the manifest's name."""
        return self.record.name

    @property
    def site(self) -> str:
        """Return the name of its site."""
        return self.record.site

    @property
    def tags(self) -> list[str]:
        """Return the user's words for it."""
        return list(self.record.tags)

    @property
    def state(self) -> str:
        """Return the state as its site tells it now, such as `TRAINING`.

        Raises:
            TransportError: the site does not answer; `record.state` is what it told before.
        """
        if not self.record.state.final and time.monotonic() - self._asked_at >= _FRESH_S:
            self.refresh()
        return str(self.record.state)

    @property
    def reason(self) -> str:
        """Return why it is in this state, as last known."""
        return self.record.reason

    def refresh(self: J) -> J:
        """Ask the site; return the training, whose `record` is new then."""
        from dlctl.lifecycle import refresh

        with self._open() as session:
            (self.record,) = refresh(session, [self._known()], self._mine.store)
        self._asked_at = time.monotonic()
        return self

    def show(self) -> dict[str, Any]:
        """Return all about it, as `dlctl show --json` prints it."""
        from dlctl.service.describe import describe

        with self._open() as session:
            found = describe(session, self._known(), self._mine.store, self._mine.tell)
        self.record = found.record
        return found.plain()

    # How it goes ----------------------------------------------------------------------------------

    def wait(
        self, until: str | Collection[str] | None = None, timeout_s: float | None = None
    ) -> str:
        """Wait until it is in a state, or beyond it; return the state.

        Args:
            until: One or several states; None: any end.
            timeout_s: None: however long it takes.

        Raises:
            TrainingFailed: it has ended in another state.
            TimeoutError: the time is over; the training goes on.
            TransportError: the site can't be reached, and waiting would not help.
        """
        wanted = _states(until)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for record in self._looks(deadline):
            if record.state in wanted or (
                not record.state.final and any(_is_beyond(record.state, each) for each in wanted)
            ):
                return str(record.state)
            if record.state.final:
                raise TrainingFailed(
                    f"{self.id} {record.state}: {record.reason}",
                    hint=record.hint or record.show_command,
                )
        raise TimeoutError(f"{self.id} is {self.record.state} after {timeout_s:g} s")

    def _looks(self, deadline: float | None) -> Iterator[Record]:
        from dlctl.errors import TransportError
        from dlctl.lifecycle import QueuePace, refresh
        from dlctl.service.client import may_pass

        pace, pause_s = QueuePace(), _FIRST_S
        with self._open() as session, session.staying() as stays:
            while True:
                before = self.record.state
                try:
                    (self.record,) = refresh(stays, [self._known()], self._mine.store, pace)
                except TransportError as error:
                    if not may_pass(error):
                        raise
                    self._mine.tell.warn(f"{error.message}; trying again")
                yield self.record
                pause_s = min(_SLOWEST_S, pause_s * _SLOWER)
                pause_s = pause_s if self.record.state is before else _FIRST_S
                left_s = float("inf") if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    return
                time.sleep(min(pause_s, left_s))

    def logs(
        self, *, follow: bool = False, rank: int | str | None = None, attempt: int | None = None,
        since: str | None = None, tail: int | None = None, grep: str | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """Yield the lines of its logs, merged by time; each as `learner-0 | text`.

        Args:
            follow: Go on until the training has ended; to leave the loop leaves the training alone.
            rank: Only these learners, as `0` or `"0,2-5"`.
            attempt: Only this attempt.
            since: Only lines written since then: `10m`, `14:30`, `2026-01-31T14:30`.
            tail: Begin at the last lines of each log.
            grep: Only lines that this regular expression fits.
        """
        from dlctl.logs.reader import read
        from dlctl.service.bringing import pieces
        from dlctl.service.logs import LinesWanted

        wanted = LinesWanted(None if rank is None else str(rank), attempt, since, tail, grep)
        with self._open() as session:
            store = self._mine.store
            record, reader = wanted.reader(session, self._known(), store)
            found = (
                pieces(session, record, store, self._mine.tell, reader)
                if follow and attempt in (None, record.attempt)
                else read(session.transport, reader)
            )
            for piece in found:
                yield from (f"{piece.source} | {line}" for line in wanted.of(piece))

    def metrics(self, names: str | None = None, since_step: int = 0) -> Columns:
        """Return what was measured as columns of one length, a row for each step of each source.

        `pandas.DataFrame(training.metrics())` takes them as they are, and so does numpy each one. A
        value that was not measured at a step is NaN.

        Args:
            names: A regular expression, such as `loss|accuracy`; None: all.
            since_step: The first step.
        """
        from dlctl.service.bringing import measured

        return columns_of(measured(self._mine, self._known(), since_step, names))

    # What can be done with it ---------------------------------------------------------------------

    def halt(self: J) -> J:
        """Save a checkpoint and stop; `resume` goes on from there."""
        return self._end("halt")

    def cancel(self: J) -> J:
        """End it without saving."""
        return self._end("cancel")

    def resume(
        self: J, *, learners: int | None = None, nodes: int | None = None,
        learners_per_node: int | None = None, gpus: int | None = None, cpus: float | None = None,
        memory: str | None = None, time: str | None = None, partition: str | None = None,
        set: Mapping[str, object] | None = None,  # noqa: A002 - as the option is called
        new_code: bool = False,
    ) -> J:  # fmt: skip
        """Go on from the newest checkpoint, or finish a submission that was broken off.

        Args:
            set: Further changes of resources, such as `{"scheduler.qos": "long"}`.
            new_code: Train with the folder as it is now.
        """
        from dlctl.manifest.overrides import overrides_of

        overrides = overrides_of({
            "learners": learners, "nodes": nodes, "learners_per_node": learners_per_node,
            "gpus": gpus, "cpus": cpus, "memory": memory, "time": time, "partition": partition,
        }, set or {})  # fmt: skip
        with self._open() as session:
            self.record = verbs.resume(session, self._known(), self._mine.store, self._mine.tell,
                                       overrides, new_code=new_code)  # fmt: skip
        return self

    def tune(self, **settings: float) -> str:
        """Change settings while it trains, at the same step on all learners: `tune(lr=0.01)`.

        Returns:
            A sentence about what the learners answered.
        """
        words = [f"{name}={value}" for name, value in settings.items()]
        with self._open() as session:
            return verbs.tune(session, self._known(), self._mine.store, words).sentence

    def save(self) -> str:
        """Save a checkpoint now; the training goes on. Return a sentence about it."""
        with self._open() as session:
            return verbs.save(session, self._known(), self._mine.store).sentence

    def fetch(
        self, to: str | Path | None = None, *, what: str = "results", include: Sequence[str] = ()
    ) -> Path:
        """Download what it has made, and verify every file; return the folder.

        Args:
            to: `results/ID` by default.
            what: results, output, checkpoints, logs, metrics, code, or all.
            include: Patterns, such as `*.pt`; none: all.

        Raises:
            ResultsError: there is nothing to fetch, or what came is damaged.
        """
        from dlctl.service.bringing import PARTS, fetch

        if what not in PARTS:
            raise Misused(f"{what!r} is none of {', '.join(PARTS)}")
        folder = None if to is None else Path(to)
        done, failures = fetch(self._mine, [self._known()], what, folder, include)
        for failure in failures:
            raise failure
        ((self.record, fetched),) = done
        return Path(fetched.folder)

    def delete(self, *, forget: bool = False) -> None:
        """Delete it with its job directory, once it has ended.

        Args:
            forget: Remove only what is known here.
        """
        done = verbs.delete(self._mine, [self._known()], forget=forget)
        for failure in done.failures:
            raise failure

    def tag(self: J, *add: str, remove: Sequence[str] = ()) -> J:
        """Give it tags, and take some away."""
        (self.record,) = tag(self._mine.store, [self._known()], add, remove)
        return self

    def store_as(
        self, name: str = "", *, alias: str | None = None, results: str = "*"
    ) -> StoredModel:
        """Store its results, with its code, as a new model at its site.

        Args:
            name: The manifest's name by default.
            alias: A name for this version, such as `best`.
            results: A pattern of the results' paths.
        """
        from dlctl.api.models import model
        from dlctl.service import models

        said = models.wish(name, [], [alias] if alias else [])
        with models.models_at(self._mine, self.site) as there:
            made = there.make(said, models.Source(None, self.id, results))
            there.read()
        return model(made.label, site=self.site)

    # ----------------------------------------------------------------------------------------------

    def _end(self: J, verb: str) -> J:
        done = verbs.end(self._mine, verb, [self.id], Filter())
        for failure in done.failures:
            raise failure
        (self.record,) = done.known
        return self

    @contextmanager
    def _open(self) -> Iterator[Session]:
        with closing(self._mine.open(self.record.site)) as session:
            yield session

    def _known(self) -> Record:
        """Return what the local record knows now: a command may have changed it."""
        return self._mine.store.find(self.id)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id} {self.record.state_in_words} at {self.site}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Training) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def _repr_html_(self) -> str:
        from dlctl.api.shown import html_of

        return html_of(self.record)


class Search(Training):
    """A search: its hub is a training, and it has trials."""

    def status(self) -> dict[str, Any]:
        """Return how far it is, as `dlctl search status --json` prints it."""
        from dlctl.search.summary import counts

        with self._open() as session:
            self.record, seen = verbs.status(session, self._known(), self._mine.store)
        return self.record.plain() | asdict(counts(seen, self.record))

    def trials(self) -> list[dict[str, Any]]:
        """Return its trials, as `dlctl search trials --json` prints them."""
        from dlctl.search.overview import read_overview

        with self._open() as session:
            found = read_overview(session, self._known()).trials
        return [asdict(each) for each in found.rows]

    def scale(self, least: int, most: int | None = None, partition: str | None = None) -> None:
        """Say how many workers it may have."""
        with self._open() as session:
            verbs.scale(session, self._known(), self._mine.store,
                        (least, least if most is None else most), partition)  # fmt: skip


def job_of(record: Record, mine: Client) -> Training | Search:
    """Return the object for a record."""
    return (Search if record.is_search else Training)(record, mine)


def _states(words: str | Collection[str] | None) -> set[State]:
    if words is None:
        return {state for state in State if state.final}
    chosen = [words] if isinstance(words, str) else list(words)
    Filter(states=chosen)  # refuses a word that is none
    return {State(word.upper()) for word in chosen}


def _is_beyond(state: State, wanted: State) -> bool:
    """Return whether a training that runs has passed a state."""
    return not wanted.final and _ORDER.index(state) >= _ORDER.index(wanted)
