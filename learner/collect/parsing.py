"""Parse what a training writes, file by file, and go on where the collector stopped before.

A feed is one file: what reads it, what parses it, and how far it has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dlctl.contract.ground.follow import Follower, LineFollower, Position
from dlctl.contract.ground.protobuf import HEAD_BYTES, BrokenFile
from dlctl.contract.metrics import MetricsLine
from learner.collect.parsers.record import LineParser
from learner.collect.parsers.tensorboard import EventParser
from learner.collect.state import State
from learner.job.metrics import MetricsFile

STATE_EVERY_S = 10.0
_SEARCH_SHARE = 0.002
"""The share of a core for finding new files."""
_MOST_FILES = 1000


@dataclass(frozen=True)
class Found:
    """A file to parse."""

    path: Path
    below: tuple[str, ...] = ()
    """The folders between the place that was searched and the file."""

    @property
    def subid(self) -> str:
        """Which of several runs the file belongs to."""
        return "/".join(self.below)


class Feed(Protocol):
    """A file that is parsed."""

    def take(self, last: bool) -> list[MetricsLine] | None:
        """Return the records of the next piece; None if there is no further piece for now."""

    def state(self) -> dict[str, Any]:
        """Return as JSON how far the file was read."""


Source = Callable[[], Iterator[tuple[Found, Callable[[Found, dict[str, object]], Feed]]]]
"""Yields each file that is there, with what makes its feed."""


class Parsing:
    """All files that one collector parses.

    Args:
        root: files are known by their paths below it.
    """

    def __init__(self, source: Source, root: Path, output: MetricsFile, state: State) -> None:
        self._source, self._root, self._output, self._state = source, root, output, state
        self._feeds: dict[str, Feed] = {}
        self._search_at = self._state_at = 0.0
        self._changed = False

    def look(self, until: float) -> bool:
        """Parse what is new; return whether nothing is left for now.

        Args:
            until: when to stop, on the monotonic clock.
        """
        now = time.monotonic()
        if now >= self._search_at:
            self._search()
            ended = time.monotonic()
            self._search_at = ended + (ended - now) / _SEARCH_SHARE
        caught_up = self._parse(until, last=False)
        if self._changed and time.monotonic() >= self._state_at:
            self._write_state()
        return caught_up

    def finish(self, until: float) -> bool:
        """Parse what is left, also a last line without an end; return whether that was all.

        Args:
            until: when to stop, on the monotonic clock.
        """
        self._search()
        caught_up = self._parse(until, last=True)
        self._write_state()
        return caught_up

    def _search(self) -> None:
        for found, make in self._source():
            name = _name(found.path, self._root)
            if name not in self._feeds and len(self._feeds) < _MOST_FILES:
                known = self._state.files.get(name)
                self._feeds[name] = make(found, known if isinstance(known, dict) else {})

    def _parse(self, until: float, *, last: bool) -> bool:
        for feed in self._feeds.values():
            while (lines := feed.take(last)) is not None:
                self._changed = True
                self._output.add_all(lines)
                if time.monotonic() >= until:
                    return False
        return True

    def _write_state(self) -> None:
        self._state_at = time.monotonic() + STATE_EVERY_S
        self._changed = False
        for name, feed in self._feeds.items():
            self._state.files[name] = feed.state()
        self._state.write()


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


class LineFeed:
    """A file of lines.

    Args:
        ends: whether nobody writes it any more once the learner has ended.
    """

    def __init__(
        self, path: Path, parser: LineParser, state: dict[str, Any], *, ends: bool = False
    ) -> None:
        self._file = LineFollower(path, Position.of(state.get("position")))
        self._parser = parser
        self._ends = ends
        parser.remember(state.get("memory"))

    def take(self, last: bool) -> list[MetricsLine] | None:
        """Return the records of the next lines."""
        text = self._file.lines(last and self._ends)
        if self._file.began_anew:
            self._parser.remember([])
        if text is not None:
            return self._parser.feed(text)
        if last and self._ends:
            self._ends = False
            return self._parser.finish()
        return None

    def state(self) -> dict[str, Any]:
        """Return how far the file was read, and what the parser knows."""
        return {"position": self._file.position.plain(), "memory": self._parser.memory()}


class EventFeed:
    """An event file of TensorBoard's.

    Args:
        complain: takes a sentence if the file turns out to hold something else.
    """

    def __init__(
        self,
        path: Path,
        parser: EventParser,
        state: dict[str, Any],
        complain: Callable[[str], None],
    ) -> None:
        self._complain = complain
        self._file = Follower(path, Position.of(state.get("position")))
        self._parser = parser
        self._broken = False
        parser.remember(state.get("histograms"))

    def take(self, last: bool) -> list[MetricsLine] | None:  # noqa: ARG002
        """Return the records of the next events; of one that is cut, nothing for now."""
        if self._broken:
            return None
        data = self._file.read()
        if not data:
            return None
        try:
            found, used = self._parser.feed(data)
        except BrokenFile:
            # A file system may show a hole of zeros first where data is still to come.
            if any(data[:HEAD_BYTES]):
                self._broken = True
                self._complain(
                    f"{self._file.path} is no event file from byte "
                    f"{self._file.position.offset} on; the rest of it is left out."
                )
            return None
        if used == 0 or self._file.position.offset + used > self._file.size:
            return None  # cut: its end will come
        self._file.advance(used)
        return found

    def state(self) -> dict[str, Any]:
        """Return how far the file was read, and what the parser knows."""
        return {"position": self._file.position.plain(), "histograms": self._parser.memory()}
