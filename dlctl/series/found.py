"""Events that follow from the curves: changes of the learning rate, and a plateau. Pure."""

from __future__ import annotations

from dlctl.contract.metrics import EventKind
from dlctl.series.answers import main_curve
from dlctl.series.best import is_better_lower
from dlctl.series.plateau import find_plateau
from dlctl.series.rates import rate_changes
from dlctl.series.run import Event, Run


def found_events(run: Run) -> list[Event]:
    """Return the events that no node has told, by step."""
    changes = rate_changes(run)
    found = [
        _event(run, change.step, EventKind.LEARNING_RATE,
               f"learning rate from {change.before:.4g} to {change.after:.4g}")
        for change in changes
    ]  # fmt: skip
    if (curve := main_curve(run)) is not None:
        since = changes[-1].step if changes else 0.0
        lower = bool(is_better_lower(curve.key.name))
        if (plateau := find_plateau(curve.values(), lower, since)) is not None:
            text = f"plateau: {curve.key.shown} has not got better since"
            found.append(_event(run, plateau.since_step, EventKind.PLATEAU, text))
    return found


def _event(run: Run, step: float, kind: EventKind, text: str) -> Event:
    attempt = max((a.attempt for a in run.attempts if a.first_step <= step), default=1)
    return Event(attempt, int(step), None, kind.value, text)
