"""The row of a training in the list of all."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dlctl.contract.measured.judged import TRIALS
from dlctl.contract.metrics import LOSS, Source
from dlctl.dashboard.curves import spark
from dlctl.series.answers import main_curve
from dlctl.series.pace import JobLimit, Progress, progress, time_left
from dlctl.series.utilisation import utilisation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlctl.dashboard.feed import Json
    from dlctl.series import Curve, Run

_SPARK_WIDTH = 60
_FINAL = ("COMPLETED", "FAILED", "HALTED", "CANCELLED")
_COPIED = ("name", "site", "reason", "attempt", "epochs", "stale_since", "started_at", "ended_at")


def row(record: Mapping[str, Any], run: Run | None, limit: JobLimit | None = None) -> Json:
    """Return what the list shows of a training.

    Args:
        record: as `dlctl list --json` prints it.
        run: None if it is not read yet.
        limit: of its jobs, if one is known; the time left then counts the waits in the queue.
    """
    state = str(record["state"])
    shown = _main_curve(run)
    loss = record.get("loss")
    if shown is not None and shown.key.name == LOSS and math.isfinite(shown.last):
        loss = shown.last
    return {
        "id": record["training_id"], "state": state, "live": state not in _FINAL,
        "created_at": _unix_seconds(record["created_at"]), "loss": loss,
        "spark": [] if shown is None else spark(shown.view(-math.inf, math.inf, _SPARK_WIDTH)),
        "spark_name": "" if shown is None else shown.key.shown,
        "spark_last": None if shown is None or not math.isfinite(shown.last) else shown.last,
        "left_s": None if run is None or state != "TRAINING" else _left_s(run, record, limit),
        "gpu": None if run is None else utilisation(run).gpu_percent,
        "is_search": bool(record.get("is_search")),
        **{name: record.get(name) for name in _COPIED},
        **_progress(run, record),
    }  # fmt: skip


def _progress(run: Run | None, record: Mapping[str, Any]) -> Json:
    told = Progress(record.get("epoch"), record.get("step"), record.get("done"))
    return (told if run is None else progress(run, told))._asdict()


def _unix_seconds(time: Any) -> float | None:
    if isinstance(time, str):
        try:
            return datetime.fromisoformat(time).timestamp()
        except ValueError:
            return None
    return None if time is None else float(time)


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


def _left_s(run: Run, record: Mapping[str, Any], limit: JobLimit | None) -> list[float] | None:
    """Return how many seconds the rest takes: at least, probably, at most; None if unknown."""
    found = time_left(run, record.get("step"), record.get("done"), limit)
    return None if found is None else [found.low_s, found.middle_s, found.high_s]
