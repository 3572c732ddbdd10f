"""Parse what a training writes, file by file, and go on where the collector stopped before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from learner.collect.feeds import Feed
from learner.collect.places import Found
from learner.collect.state import State
from learner.job.metrics import MetricsFile

STATE_EVERY_S = 10.0
_SEARCH_SHARE = 0.002
"""Of a core, for looking for new files."""
_MOST_FILES = 1000
SELDOM_S = 30.0
"""At least so often each file is looked at; one that has just grown, and the last one that did,
each time."""

Source = Callable[[], Iterator[tuple[Found, Callable[[Found, dict[str, object]], Feed]]]]
"""Yields each file that is there, with what makes its feed."""


@dataclass
class _Followed:
    """A file, and when to look at it."""

    feed: Feed
    grew_at: float
    """When it was found, or had grown, on the monotonic clock."""
    look_at: float = 0.0

    def wait(self, now: float) -> None:
        """Look at a file that does not grow less and less often."""
        self.look_at = now + min(SELDOM_S, (now - self.grew_at) / 4)


class Parsing:
    """All files that one collector parses.

    Args:
        source: searches for files.
        root: files are known by their paths below it.
        output: takes the lines.
        state: how far an earlier collector came.
    """

    def __init__(self, source: Source, root: Path, output: MetricsFile, state: State) -> None:
        self._source = source
        self._root = root
        self._output = output
        self._state = state
        self._feeds: dict[str, _Followed] = {}
        self._grew_last: _Followed | None = None
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

    def finish(self, until: float = float("inf")) -> None:
        """Parse everything that is left, also a last line without an end.

        Args:
            until: when to stop, on the monotonic clock.
        """
        self._search()
        self._write_state(finished=self._parse(until, last=True))

    def _search(self) -> None:
        for found, make in self._source():
            name = _name(found.path, self._root)
            if name not in self._feeds and len(self._feeds) < _MOST_FILES:
                known = self._state.files.get(name)
                feed = make(found, known if isinstance(known, dict) else {})
                self._feeds[name] = _Followed(feed, time.monotonic())

    def _parse(self, until: float, *, last: bool) -> bool:
        for file in self._feeds.values():
            now = time.monotonic()
            if now < file.look_at and file is not self._grew_last and not last:
                continue
            while (lines := file.feed.take(last)) is not None:
                self._changed = True
                self._output.add_all(lines)
                self._grew_last, file.grew_at = file, now
                if time.monotonic() >= until:
                    return False
            file.wait(now)
        return True

    def _write_state(self, *, finished: bool = False) -> None:
        self._state_at = time.monotonic() + STATE_EVERY_S
        self._changed = False
        for name, file in self._feeds.items():
            self._state.files[name] = file.feed.state()
        self._state.write(finished=finished)


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
