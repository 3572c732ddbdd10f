"""One file that is parsed: what reads it, what parses it, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from dlctl.contract.ground.follow import Follower, LineFollower, Position
from dlctl.contract.ground.tfrecord import HEAD_BYTES, BrokenFile
from dlctl.contract.metrics import MetricsLine
from learner.collect.parsers.base import LineParser
from learner.collect.parsers.tensorboard import EventParser


class Feed(Protocol):
    """A file that is parsed."""

    def take(self, last: bool) -> list[MetricsLine] | None:
        """Return the records of the next piece; None if there is no further piece for now."""

    def state(self) -> dict[str, Any]:
        """Return as JSON how far the file was read."""


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
