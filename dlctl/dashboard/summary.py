"""The row of a training in the list of all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.contract.measured.judged import TRIALS
from dlctl.contract.metrics import LOSS, Source
from dlctl.dashboard.curves import spark
from dlctl.series.answers import main_curve
from dlctl.series.pace import JobLimit, progress, time_left
from dlctl.series.utilisation import utilisation
from dlctl.units import unix_seconds

if TYPE_CHECKING:
    from dlctl.dashboard.feed import Json
    from dlctl.record import Record
    from dlctl.series import Curve, Run

_SPARK_WIDTH = 60
_COPIED = ("name", "site", "reason", "attempt", "epochs", "stale_since", "started_at", "ended_at",
           "is_search")  # fmt: skip


def row(record: Record, run: Run | None, limit: JobLimit | None = None) -> Json:
    """Return what the list shows of a training.

    Args:
        run: None if it is not read yet.
        limit: of its jobs, if one is known; the time left then counts the waits in the queue.
    """
    shown, left, loss = _main_curve(run), None, record.loss
    if run is not None and record.state is State.TRAINING:
        left = time_left(run, record.step, record.done, limit)
    if shown is not None and shown.key.name == LOSS and math.isfinite(shown.last):
        loss = shown.last
    return {
        "id": record.training_id, "state": str(record.state), "live": not record.state.final,
        "created_at": unix_seconds(record.created_at), "loss": loss,
        "spark": [] if shown is None else spark(shown.view(-math.inf, math.inf, _SPARK_WIDTH)),
        "spark_name": "" if shown is None else shown.key.shown,
        "spark_last": None if shown is None or not math.isfinite(shown.last) else shown.last,
        "left_s": None if left is None else [left.low_s, left.middle_s, left.high_s],
        "gpu": None if run is None else utilisation(run).gpu_percent,
        **{name: getattr(record, name) for name in _COPIED},
        **progress(run, record)._asdict(),
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
    if losses := [curve for curve in own if curve.key.name == LOSS]:
        return min(losses, key=lambda curve: (curve.key.learner, -len(curve)))
    return main_curve(run) or min(own, key=lambda curve: curve.key, default=None)
