"""Events that follow from the curves: changes of the learning rate, and a plateau. Pure.

A node tells of a plateau itself; only the records of older versions, and of a training that has
ended before its node looked, are searched for one here.
"""

from __future__ import annotations

from dlctl.contract.measured.plateau import stands_still
from dlctl.contract.metrics import EventKind
from dlctl.series.answers import changes_of_rate, main_curve
from dlctl.series.plateau import plateau_of
from dlctl.series.run import Event, Run


def found_events(run: Run) -> list[Event]:
    """Return the events that no node has told, by step."""
    changes = changes_of_rate(run)
    found = [
        _event(run, change.step, EventKind.LEARNING_RATE,
               f"learning rate from {change.before:.4g} to {change.after:.4g}")
        for change in changes
    ]  # fmt: skip
    told = any(event.kind == EventKind.PLATEAU.value for event in run.events)
    if not told and (curve := main_curve(run)) is not None:
        since = changes[-1].step if changes else 0.0
        plateau = plateau_of(run, curve, since, proven=True)
        if plateau is not None:
            text = f"plateau: {stands_still(curve.key.shown, plateau.since_step)}"
            found.append(_event(run, plateau.since_step, EventKind.PLATEAU, text))
    return found


def _event(run: Run, step: float, kind: EventKind, text: str) -> Event:
    attempt = max((a.attempt for a in run.attempts if a.first_step <= step), default=1)
    return Event(attempt, int(step), None, kind.value, text)
