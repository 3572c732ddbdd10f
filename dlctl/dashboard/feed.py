"""Messages to pages about trainings and searches, and about refused requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.contract.ground.safe_text import lines_of
from dlctl.contract.measured.judged_series import TRIALS
from dlctl.contract.metrics import Source, finite
from dlctl.dashboard.curves import Json, spark
from dlctl.errors import RecordError
from dlctl.search.overview import SearchReader
from dlctl.search.page import page_of
from dlctl.search.summary import importance_of
from dlctl.series.answers import main_curve
from dlctl.series.pace import JobLimit, loss_curve, progress, time_left
from dlctl.series.utilisation import use_of

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.search.importance import Importance
    from dlctl.search.overview import Overview
    from dlctl.series import Curve, Run

_FEW_MORE = 0.02
"""Importance is derived anew when there are so many more trials, as a share."""
_SPARK_WIDTH = 60
_COPIED = ("name", "site", "state", "reason", "attempt", "epochs", "stale_since", "created_at",
           "started_at", "ended_at", "elapsed_s", "clock_ahead_s", "is_search", "tags",
           "varied")  # fmt: skip


class Unknown(LookupError):
    """There is no such training here."""


class Refused(Exception):  # noqa: N818
    """An action was refused; the text says why, in words for people."""


def row(record: Record, run: Run | None, limit: JobLimit | None = None) -> Json:
    """Return what the list shows of a training.

    Args:
        run: None if it is not read yet.
        limit: of its jobs, if one is known; the time left then counts the waits in the queue.
    """
    shown, left, known = _main_curve(run), None, record.plain()
    if run is not None and record.state is State.TRAINING:
        left = time_left(run, record.step, record.done, limit)
    return {
        "id": record.training_id, "live": not record.state.final,
        "spark": [] if shown is None else spark(shown.view(-math.inf, math.inf, _SPARK_WIDTH)),
        "spark_name": "" if shown is None else shown.key.shown,
        "spark_last": None if shown is None or not math.isfinite(shown.last) else shown.last,
        "left_s": None if left is None else [left.low_s, left.middle_s, left.high_s],
        "gpu": None if run is None else use_of(run).gpu_percent,
        **{name: known[name] for name in _COPIED},
        **(so_far := progress(run, record))._asdict(),
        "loss": None if so_far.loss is None else finite(so_far.loss),
    }  # fmt: skip


def _main_curve(run: Run | None) -> Curve | None:
    """Return the loss, or what the training is judged by, or whatever it measures.

    Of a search it is the best value so far.
    """
    if run is None:
        return None
    # Without sorting: there may be a million names.
    own = [c for key, c in run.curves.items() if key.source != Source.NODE.value and len(c)]
    if best := [c for c in own if c.key.group == TRIALS and c.key.name.startswith("best ")]:
        return best[0]
    return loss_curve(run) or main_curve(run) or min(own, key=lambda curve: curve.key, default=None)


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


class Searches:
    """The searches that pages have asked for."""

    def __init__(self) -> None:
        self._readers: dict[str, SearchReader] = {}
        self._important: dict[str, tuple[int, list[Importance]]] = {}
        """Search → of how many ended trials, and what it was."""

    def reader(self, record: Record) -> SearchReader:
        """Return what keeps a search new."""
        return self._readers.setdefault(record.training_id, SearchReader(record))

    def page(self, record: Record) -> Json:
        """Return what a page shows of a search.

        Raises:
            Unknown: it is no search, or nothing is known of it.
        """
        try:
            overview = self.reader(record).overview
        except RecordError as error:
            raise Unknown(error.message) from error
        return page_of(overview, record, self._importances(overview, record))

    def _importances(self, overview: Overview, record: Record) -> list[Importance]:
        count = len(overview.trials.order)
        of, known = self._important.get(record.training_id, (-1, []))
        if of < 0 or count > of * (1 + _FEW_MORE) or (record.state.final and count != of):
            known = importance_of(overview)
            self._important[record.training_id] = count, known
        return known
