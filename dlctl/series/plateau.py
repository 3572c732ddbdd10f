"""The plateau that a curve is on: since the step that a node has told, if it has told one. Pure."""

from __future__ import annotations

from dataclasses import replace

from dlctl.contract.measured.judged import is_better_lower
from dlctl.contract.measured.plateau import (
    Plateau,
    find_plateau,
    median_of_newest,
    stands_still,
)
from dlctl.contract.metrics import EventKind
from dlctl.series.curve import Curve
from dlctl.series.run import Run


def plateau_of(run: Run, curve: Curve, since: float, *, proven: bool = False) -> Plateau | None:
    """Return the plateau at the end of a curve, if there is one.

    Where it began is estimated anew with each value. Once an event has told a step, that step
    stays until the curve gets better, so that no two views disagree.

    Args:
        since: the step of the newest change of the learning rate.
        proven: ask for proof, as for an event.
    """
    lower = bool(is_better_lower(curve.key.name))
    points = curve.values()
    found = find_plateau(points, lower, since, proven=True)
    if found is None and not proven:
        found = find_plateau(points, lower, since)
    if found is None or (told := _told(run, curve, since)) is None:
        return found
    step, bound = told
    newest = median_of_newest([-value if lower else value for _, value in points])
    return found if newest > bound else replace(found, since_step=step)


def _told(run: Run, curve: Curve, since: float) -> tuple[float, float] | None:
    """Return the step of the newest event for a curve, and the gain that ends its plateau."""
    sign = -1.0 if is_better_lower(curve.key.name) else 1.0
    for event in reversed(run.events):
        level, margin = event.values.get("level"), event.values.get("margin")
        is_plateau = event.kind == EventKind.PLATEAU.value and event.step > since
        if is_plateau and stands_still(curve.key.shown, event.step) in event.text:
            return None if level is None or margin is None else (event.step, sign * level + margin)
    return None
