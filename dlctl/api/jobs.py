"""A training as an object."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dlctl.api.room import listed, mine
from dlctl.contract import State
from dlctl.errors import DlctlError, Misused, TrainingFailed, TransportError
from dlctl.series.merged import Columns, columns_of
from dlctl.service import verbs
from dlctl.service.client import Filter, may_pass, note, tag

if TYPE_CHECKING:
    from dlctl.api.shown import Line
    from dlctl.lifecycle import QueuePace, Session
    from dlctl.record import Record
    from dlctl.service.client import Client
    from dlctl.tell import Tell

J = TypeVar("J", bound="Training")
_FRESH_S = 1.0
"""For how long an answer of a site counts as new."""
_FIRST_S, _SLOWEST_S, _SLOWER = 0.5, 5.0, 1.3
"""How often `wait` looks: less often while nothing changes."""
_WAY = [state for state in State if not state.final] + [State.COMPLETED]
"""The states of a training to which nothing happens, in their order."""


class Training:
    """One training.

    Args:
        record: What the local record knows of it.
        mine: What opens its site.
    """

    def __init__(self, record: Record, mine: Client) -> None:
        self.record, self._mine = record, mine
        self._refreshed_at = float("-inf")

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
    def notes(self) -> list[str]:
        """Return the remarks on it, each behind its day."""
        return list(self.record.notes)

    @property
    def state(self) -> str:
        """Return the state as its site tells it now, such as `TRAINING`.

        Raises:
            TransportError: the site does not answer; `record.state` is what it told before.
        """
        if not self.record.state.final and time.monotonic() - self._refreshed_at >= _FRESH_S:
            self.refresh()
        return str(self.record.state)

    @property
    def reason(self) -> str:
        """Return why it is in this state, as last known."""
        return self.record.reason

    def refresh(self: J) -> J:
        """Ask the site; return the training, whose `record` is new then."""
        self._look()
        return self

    def _look(self, pace: QueuePace | None = None) -> Record:
        from dlctl.lifecycle import refresh

        with self._open() as session:
            (self.record,) = refresh(session, [self._known()], self._mine.store, pace)
        self._refreshed_at = time.monotonic()
        return self.record

    def show(self) -> dict[str, Any]:
        """Return all about it, as `dlctl show --json` prints it."""
        from dlctl.service.describe import describe

        with self._open() as session:
            found = describe(session, self._known(), self._mine.store, self._mine.tell)
        self.record = found.record
        return found.plain()

    def diff(self, other: Training) -> dict[str, Any]:
        """Return how another training differs from it, as `dlctl diff --json` prints it."""
        from dlctl.service.difference import difference

        return difference(self._mine, self._known(), other._known())

    # How it goes ----------------------------------------------------------------------------------

    def wait(
        self, until: str | Collection[str] | None = None, timeout_s: float | None = None,
        on_look: Callable[[Training], object] | None = None,
    ) -> str:  # fmt: skip
        """Wait until it is in a state, or beyond it; return the state.

        Args:
            until: One or several states; None: any end.
            timeout_s: None: however long it takes.
            on_look: Called at each look; in a notebook the `update` of what `display` returns.

        Raises:
            TrainingFailed: it has ended in another state.
            TimeoutError: the time is over; the training goes on.
            TransportError: the site can't be reached, and waiting would not help.
        """
        from dlctl.lifecycle import QueuePace

        wanted, pace = states(until), QueuePace()
        for record in _looks(lambda: self._look(pace), self._mine.tell, timeout_s):
            if on_look is not None:
                on_look(self)
            if is_there(record.state, wanted):
                return str(record.state)
            if record.state.final:
                raise TrainingFailed(
                    f"{self.id} {record.state}: {record.reason}",
                    hint=record.hint or record.show_command,
                )
        raise TimeoutError(f"{self.id} is {self.record.state} after {timeout_s:g} s")

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
        from dlctl.service.fetching import lines
        from dlctl.service.logs import LinesWanted

        wanted = LinesWanted(None if rank is None else str(rank), attempt, since, tail, grep)
        with closing(self._mine.open(self.site, follows=follow)) as session:
            yield from lines(session, self._known(), self._mine, wanted, follow=follow)

    def metrics(self, names: str | None = None, since_step: int = 0) -> Columns:
        """Return what was measured as columns of one length, a row for each step of each source.

        `pandas.DataFrame(training.metrics())` takes them as they are, and so does numpy each one. A
        value that was not measured at a step is NaN.

        Args:
            names: A regular expression, such as `loss|accuracy`; None: all.
            since_step: The first step.
        """
        from dlctl.service.fetching import measured

        return columns_of(measured(self._mine, self._known(), since_step, names))

    # What can be done with it ---------------------------------------------------------------------

    def halt(self: J) -> J:
        """Save a checkpoint and stop; `resume` goes on from there."""
        self._act("halt")
        return self

    def cancel(self: J) -> J:
        """End it without saving."""
        self._act("cancel")
        return self

    def resume(
        self: J, *, learners: int | None = None, nodes: int | None = None,
        learners_per_node: int | None = None, gpus: int | None = None, cpus: float | None = None,
        memory: str | None = None, time: str | None = None, partition: str | None = None,
        set: Mapping[str, object] | None = None,  # noqa: A002 - as the option is called
        new_code: bool = False, epochs: int | str = "",
    ) -> J:  # fmt: skip
        """Go on from the newest checkpoint, or finish a submission that was broken off.

        Args:
            set: Further changes of resources, such as `{"scheduler.qos": "long"}`.
            new_code: Train with the folder as it is now.
            epochs: How many the built-in loop trains in all, or as "+10" how many more; then one
                that has completed goes on, too.
        """
        from dlctl.manifest.overrides import overrides_of

        overrides = overrides_of({
            "learners": learners, "nodes": nodes, "learners_per_node": learners_per_node,
            "gpus": gpus, "cpus": cpus, "memory": memory, "time": time, "partition": partition,
        }, set or {})  # fmt: skip
        with self._open() as session:
            self.record = verbs.resume(
                session, self._known(), self._mine.store, self._mine.tell, overrides,
                new_code=new_code, epochs=str(epochs),
            )  # fmt: skip
        return self

    def tune(self, **settings: float) -> str:
        """Change settings while it trains, at the same step on all learners: `tune(lr=0.01)`.

        Returns:
            A sentence about what the learners answered.
        """
        return self._act("tune", settings)

    def save(self) -> str:
        """Save a checkpoint now; the training goes on. Return a sentence about it."""
        return self._act("save")

    def fetch(
        self,
        to: str | Path | None = None,
        *,
        what: str = "results",
        include: str | Sequence[str] = (),
    ) -> Path:
        """Download what it has made, and verify every file; return the folder.

        Args:
            to: `results/ID` by default.
            what: results, output, checkpoints, logs, metrics, code, or all.
            include: Patterns, such as `*.pt`; none: all.

        Raises:
            ResultsError: there is nothing to fetch, or what came is damaged.
        """
        from dlctl.service.fetching import PARTS, fetch

        if what not in PARTS:
            raise Misused(f"{what!r} is none of {', '.join(PARTS)}")
        folder = None if to is None else Path(to)
        done, failures = fetch(self._mine, [self._known()], what, folder, listed(include))
        for failure in failures:
            raise failure
        ((self.record, fetched),) = done
        return Path(fetched.folder)

    def delete(self, *, forget: bool = False) -> None:
        """Delete it with its job directory, once it has ended.

        Args:
            forget: Remove only what is known here.
        """
        verbs.delete(self._mine, [self._known()], forget=forget).one()

    def tag(self: J, *add: str, remove: str | Sequence[str] = ()) -> J:
        """Give it tags, and take some away."""
        (self.record,) = tag(self._mine.store, [self._known()], add, listed(remove))
        return self

    def note(self: J, text: str) -> J:
        """Add a remark on it."""
        self.record = note(self._mine.store, self._known(), text)
        return self

    # ----------------------------------------------------------------------------------------------

    def _act(self, verb: str, settings: Mapping[str, float] | None = None) -> str:
        with self._open() as session:
            self.record, sentence = verbs.act(session, self._known(), self._mine.store, verb,
                                              self._mine.tell, settings=settings)  # fmt: skip
        return sentence

    def _open(self) -> closing[Session]:
        return closing(self._mine.open(self.site))

    def _known(self) -> Record:
        """Return what the local record knows now: a command may have changed it."""
        return self._mine.store.find(self.id)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id} {self.record.state_in_words} at {self.site}>"

    def __reduce__(self) -> tuple[Callable[..., Training], tuple[type[Training], Record]]:
        """Let another process have it, which opens sites for itself."""
        return _again, (type(self), self.record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Training) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def _repr_html_(self) -> str:
        """Return its table and its curve, as new as its site tells, or else as last known."""
        from dlctl.api.shown import html_of

        note = ""
        try:
            _ = self.state
            with self._open() as session:
                line = self._line(session)
        except DlctlError as error:
            note, line = f"as last known: {error.message}", self._line(None)
        return html_of(self.record, line, note)

    def _line(self, session: Session | None) -> Line:
        from dlctl.api.shown import line_of

        return line_of(self.record, session)


def _again(kind: type[Training], record: Record) -> Training:
    return kind(record, mine())


# Waiting ------------------------------------------------------------------------------------------


def _looks(look: Callable[[], Record], tell: Tell, timeout_s: float | None) -> Iterator[Record]:
    """Yield what each look finds, until the time is over; a site that is silent is asked again.

    Raises:
        TransportError: to ask again would not help.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    pause_s, before = _FIRST_S, None
    while True:
        try:
            yield (now := look())
        except TransportError as error:
            if not may_pass(error):
                raise
            tell.warn(f"{error.message}; trying again")
        else:
            pause_s = _FIRST_S if now.state is not before else min(_SLOWEST_S, pause_s * _SLOWER)
            before = now.state
        if (left_s := deadline - time.monotonic()) <= 0:
            return
        time.sleep(min(pause_s, left_s))


def states(words: str | Collection[str] | None) -> set[State]:
    """Return the states that are waited for; of no words those in which a training has ended.

    Raises:
        Misused: a word is no state.
    """
    if not words:
        return {state for state in State if state.final}
    chosen = [words] if isinstance(words, str) else list(words)
    Filter(states=chosen)
    return {State(word.upper()) for word in chosen}


def is_there(state: State, wanted: set[State]) -> bool:
    """Return whether a training is in one of these states, or has passed one on its way."""
    passed = _WAY[: _WAY.index(state) + 1] if state in _WAY else [state]
    return not wanted.isdisjoint(passed)
