"""What the server knows about trainings; `live` implements it with real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from dlctl.contract.ground.safe_text import lines_of

if TYPE_CHECKING:
    from dlctl.live.versions import Versions
    from dlctl.series import Run

Json = dict[str, Any]


class Unknown(LookupError):
    """There is no such training here."""


class Refused(Exception):  # noqa: N818
    """An action was refused; the text says why, in words for people."""


class Feed(Protocol):
    """Where the dashboard learns about trainings. Every method may be called from any thread."""

    versions: Versions
    """Counts the changes, and lets the server wait for the next one."""

    def trainings(self) -> list[Json]:
        """Return a row for each training, the newest first; see `summary.row`."""
        ...

    def details(self, training_id: str) -> Json:
        """Return what `dlctl show --json` prints, and more.

        `answers`: objects with `question`, `answer`, `evidence`, `state` (good, bad, unclear).
        `utilisation`: sentences. `checkpoints`: objects. `verdicts`: one for each ended attempt.
        `offers`: what a person may have done with it.

        Raises:
            Unknown
        """
        ...

    def run(self, training_id: str) -> AbstractContextManager[Run]:
        """Return the metrics; they do not grow inside the `with` block.

        Raises:
            Unknown
        """
        ...

    def search(self, training_id: str) -> Json:
        """Return what a page shows of a search: see `dlctl.search.page`.

        Raises:
            Unknown: there is no such training, or it is no search.
        """
        ...

    def refine(self, training_id: str, begin: float, end: float, width: int) -> None:
        """Bring finer bins of a window of steps, where curves are known by coarse ones.

        Args:
            width: how many bins of each curve the window should have.

        Raises:
            Unknown
        """
        ...

    def log_pieces(self, training_id: str) -> AsyncIterator[Json]:
        """Yield pieces of the log as they come: `attempt`, `source`, and `text` of whole lines.

        Raises:
            Unknown
        """
        ...

    def log_tail(self, training_id: str, lines: int) -> list[Json]:
        """Return the last lines of the newest attempt's log; nothing if the site does not answer.

        Raises:
            Unknown
        """
        ...

    def act(self, training_id: str, verb: str, arguments: Mapping[str, Any]) -> str:
        """Do what a person asked for, and return a sentence about it.

        Args:
            verb: one of `dlctl.service.verbs.OFFERED`.

        Raises:
            Unknown, Refused
        """
        ...

    def look(self, training_ids: Sequence[str]) -> AbstractContextManager[None]:
        """Note that a page shows these trainings (none: the list of all) inside the `with` block.

        What nobody looks at is asked for less often.
        """
        ...

    def close(self) -> None:
        """End all connections; idempotent."""
        ...


def last_lines(pieces: Sequence[Json], lines: int) -> list[Json]:
    """Return the pieces of a log that hold its last lines, the first one cut."""
    kept: list[Json] = []
    for piece in reversed(pieces):
        if lines <= 0:
            break
        text = lines_of(piece["text"])[-lines:]
        lines -= len(text)
        kept.append({**piece, "text": "".join(f"{line}\n" for line in text)})
    return kept[::-1]
