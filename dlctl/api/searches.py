"""A search as an object: its hub is a training, and it has trials."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dlctl.api.jobs import Training
from dlctl.errors import ResultsError
from dlctl.service import verbs

if TYPE_CHECKING:
    from dlctl.api.shown import Line
    from dlctl.lifecycle import Session
    from dlctl.search.trials import Trials


class Search(Training):
    """A search; what a training can do, it can do with its hub."""

    def status(self) -> dict[str, Any]:
        """Return how far it is, as `dlctl status --json` prints it."""
        from dlctl.search.summary import counts

        with self._open() as session:
            self.record, overview = verbs.status(session, self._known(), self._mine.store)
        return self.record.plain() | asdict(counts(overview, self.record))

    def trials(self) -> list[dict[str, Any]]:
        """Return its trials, as `dlctl search trials --json` prints them."""
        return [asdict(each) for each in self._trials().rows]

    def best(self) -> dict[str, Any]:
        """Return the best trial so far, as `dlctl search best --json` prints it.

        Raises:
            ResultsError: no trial has ended with a metric.
        """
        from dlctl.search.summary import best_words

        found = self._trials()
        if (row := found.best) is None:
            raise ResultsError(f"{self.id}: {best_words(found)}",
                               hint=f"dlctl search trials {self.id}")  # fmt: skip
        return asdict(row)

    def scale(self, least: int, most: int | None = None, partition: str | None = None) -> None:
        """Say how many workers it may have."""
        with self._open() as session:
            verbs.scale(session, self._known(), self._mine.store,
                        (least, least if most is None else most), partition)  # fmt: skip

    def _line(self, session: Session | None) -> Line:
        from dlctl.api.shown import Line
        from dlctl.search.overview import read_overview

        found = read_overview(session, self._known()).trials.best_over_time() if session else []
        return Line("best of its trials", "trials", [(each.ended, each.metric) for each in found])

    def _trials(self) -> Trials:
        from dlctl.search.overview import read_overview

        with self._open() as session:
            return read_overview(session, self._known()).trials
