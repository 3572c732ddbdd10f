"""The interface of a data store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dlctl.contract import DataStore, ResultsIndex

Tick = Callable[[], None]
"""Called at least once a second while data moves: keeps the job's heartbeat fresh, and raises
`Interrupted` once a request to end the attempt has come."""


class Interrupted(Exception):
    """A request to end the attempt interrupted the moving of data."""


@dataclass(frozen=True)
class Publication:
    """The right of one attempt to publish results."""

    attempt: int
    tick: Tick
    check: Tick
    """Called right before each publication; raises `Interrupted` if a later attempt has begun."""


class Store(Protocol):
    """A kind of data store: how training data gets to the nodes, and results get back."""

    def problems(self, store: DataStore) -> list[str]:
        """Return what is wrong with the training data: what was seen, a line break, what to do."""

    def load(self, store: DataStore, job_dir: Path, tick: Tick) -> Path | None:
        """Bring the training data to where all nodes see it; None: the store has none.

        Returns:
            The directory or file with the data.

        Raises:
            UserFault: it can't be brought.
            Interrupted: by `tick`.
        """

    def save(
        self, store: DataStore, place: str, results: Path, index: ResultsIndex,
        publication: Publication,
    ) -> str:  # fmt: skip
        """Copy files to a place in the store, which begins with the training's id, each whole.

        A late writer of an earlier attempt must not win: remove what earlier attempts have begun,
        and call `publication.check` between the last byte and the name.

        Returns:
            Where they are now, for people; nothing if the store takes no results.

        Raises:
            UserFault: a copy failed, or is not what was written.
            Interrupted: by `publication`.
        """
