"""Messages of a use case to its user while it works: a face shows them, a program may not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnProgress = Callable[[int, int], None]
"""Called with the bytes that are done, and all that are to be."""


class Tell:
    """Shows nothing. A face's class shows what suits it."""

    def note(self, text: str) -> None:
        """Say a sentence about what is done; an empty text says nothing."""

    def warn(self, text: str) -> None:
        """Say a sentence about what may not be as the user expects; an empty text says nothing."""

    @contextmanager
    def progress(self, what: str) -> Iterator[OnProgress]:  # noqa: ARG002
        """Yield what is called as bytes go by."""
        yield lambda _done, _all: None

    @contextmanager
    def counting(self, what: str, count: int) -> Iterator[Callable[[], None]]:  # noqa: ARG002
        """Yield what is called once for each of so many things."""
        yield lambda: None


class Once(Tell):
    """Passes each sentence on once."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._known = tell, set[str]()

    def note(self, text: str) -> None:
        """Say a sentence, unless it was said."""
        self._tell.note("" if text in self._known else text)
        self._known.add(text)

    def warn(self, text: str) -> None:
        """Say a sentence, unless it was said."""
        self._tell.warn("" if text in self._known else text)
        self._known.add(text)


SILENT = Tell()
