"""Suggest a time limit, and the interval of checkpoints. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

from dlctl.contract import State, VerdictKind
from dlctl.contract.measured.interval import sensible_interval_s
from dlctl.contract.measured.past import HIGH, Past, quantile
from dlctl.manifest.intervals import parse_every
from dlctl.series.readable import exact_span
from dlctl.suggest.evidence import Suggestion, is_enough, range_of, trainings, whole
from dlctl.units import counted, format_duration

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.sites.model import Site

_MARGIN = 1.25
_NEAR = 2.0
"""Checkpoints twice as often, or half as often, as is best lose a quarter more than the least."""
_FAULTS = frozenset({
    VerdictKind.NODE_LOST, VerdictKind.GPU_ERROR, VerdictKind.NETWORK, VerdictKind.PREEMPTED,
    VerdictKind.SITE, VerdictKind.SCHEDULER,
})  # fmt: skip
"""Ends that a checkpoint is for, as it isn't for errors of the program."""


def needed_s(manifest: Manifest, here: Sequence[Past]) -> tuple[float, str] | None:
    """Return how long the training will take at most, and why; None if nobody can tell.

    With the built-in loop: the p95 of a step × the steps × 1.25, and validations, start and store.
    A program's steps are not known: the p95 of what whole trainings took × 1.25.
    """
    here = [past for past in here if not past.is_rehearsal]
    alike = [past for past in here if past.learners == manifest.learners]
    if manifest.framework.job is not None and any(past.epochs for past in here):
        return _steps_s(manifest, here, alike)
    ended = {past.training_id for past in alike if past.state == State.COMPLETED}
    spans = [sum(past.held_s for past in alike if past.training_id == each)
             for each in sorted(ended)]  # fmt: skip
    if not spans:
        return None
    why = f"{counted(len(spans), 'training')}: {range_of(spans, exact_span)}"
    return quantile(spans, HIGH) * _MARGIN, why


def _steps_s(
    manifest: Manifest, here: Sequence[Past], alike: Sequence[Past]
) -> tuple[float, str] | None:
    known = [past for past in alike if past.step_s is not None]
    samples = [past.epoch_samples for past in (alike or here) if past.epoch_samples]
    if not known or not samples:
        return None
    training = manifest.training
    each = [(past.step_s or 0.0) * max(1.0, training.batch_size / past.batch_size)
            for past in known]  # fmt: skip
    step_s = quantile(each, HIGH)
    steps = math.ceil(max(samples) / training.batch_size) * training.epochs
    validations = training.epochs // training.validate_every_epochs
    spent_s = [past.validation_s for past in known if past.validation_s is not None]
    validation_s = validations * quantile(spent_s, HIGH) if spent_s else 0.0
    around_s = quantile([past.start_s + past.store_s for past in known], HIGH)
    why = (f"{trainings(known)}: {steps} steps of {exact_span(step_s)}, "
           f"{exact_span(around_s)} to start and store")  # fmt: skip
    needed = (steps * step_s + validation_s) * _MARGIN + around_s
    return max([needed, *_least_s(manifest, alike)]), why


def _least_s(manifest: Manifest, alike: Sequence[Past]) -> list[float]:
    """Return what trainings of as many epochs took, and more than those that their time ended."""
    found = []
    for training_id in {past.training_id for past in alike}:
        attempts = [past for past in alike if past.training_id == training_id]
        last, held_s = attempts[-1], sum(past.held_s for past in attempts)
        if (last.epochs, last.batch_size) == (manifest.training.epochs,
                                              manifest.training.batch_size):  # fmt: skip
            if last.state == State.COMPLETED:
                found.append(held_s)
            elif last.kind == VerdictKind.TIME_LIMIT:
                found.append(held_s * _MARGIN)
    return found


def time_limit(manifest: Manifest, here: Sequence[Past]) -> Suggestion:
    """Return the time that nearly each training of this kind takes at most."""
    value, found = manifest.time or "", needed_s(manifest, here)
    if found is None:
        counts = sorted({past.learners for past in here})
        of_others = f", only with {', '.join(map(str, counts))}" if counts else ""
        what = f"too little: none has completed here with {counted(manifest.learners, 'learner')}"
        return Suggestion(
            "time", value, "", f"{what}{of_others if manifest.learners not in counts else ''}"
        )
    seconds, why = found
    span_s = _round_time_s(seconds)
    suggested = value if is_enough(manifest.time_s, seconds) else format_duration(span_s)
    if manifest.time_s is not None and span_s == manifest.time_s:
        suggested = value
    return Suggestion("time", value, suggested, why)


def _round_time_s(seconds: float) -> int:
    """Return a time limit: whole minutes, the coarser the longer, and at least five."""
    step_s = 60 if seconds < 7200 else 300 if seconds < 36000 else 1800
    return max(300, step_s * math.ceil(seconds / step_s))


# Checkpoints --------------------------------------------------------------------------------------


def interval(
    manifest: Manifest, site: Site, here: Sequence[Past], everyone: Sequence[Past]
) -> Suggestion:
    """Return the time between checkpoints, by Young's and Daly's formula.

    `dlctl.contract.measured.interval` has it, and the papers. The site file's mean time
    between failures of a node counts as one failure that was seen, so it decides until there are
    more.

    Args:
        here: What such trainings have used at the site.
        everyone: What all trainings have used there, which tells how often nodes fail.
    """
    value = manifest.checkpoint.every if "every" in manifest.checkpoint.model_fields_set else ""
    known = whole(past for past in here if past.save_s is not None)
    here = [past for past in here if not past.is_rehearsal]
    if not known:
        return Suggestion("checkpoint.every", value, "", "too little: no checkpoint was measured")
    save_s = fmean(past.save_s or 0.0 for past in known)
    node_s = sum(past.held_s * past.nodes for past in everyone)
    faults = sum(past.kind in _FAULTS for past in everyone)
    evidence = (f"{trainings(known)}: {exact_span(save_s)} a checkpoint; "
                f"{counted(faults, 'fault')} in {node_s / 3600:.2g} node-hours")  # fmt: skip
    before_s = site.failures.node_mtbf_s
    mtbf_s = None
    if before_s is not None or faults:
        mtbf_s = (node_s + (before_s or 0)) / (faults + (before_s is not None)) / _nodes(here)
    best_s = sensible_interval_s(save_s, mtbf_s)
    if before_s is not None:
        evidence += f", and the site file's one in {format_duration(before_s)} a node"
    length = needed_s(manifest, here)
    if length is not None and best_s >= length[0]:
        evidence += f": {format_duration(_round_s(best_s))} is longer than the training"
        return Suggestion("checkpoint.every", value, value, evidence)
    unit, count = parse_every(manifest.checkpoint.every)
    now_s = count * (_length_s(unit, manifest, known) or 0.0)
    if unit == "auto" or best_s / _NEAR <= now_s <= best_s * _NEAR:
        return Suggestion("checkpoint.every", value, value, evidence)
    return Suggestion("checkpoint.every", value, format_duration(_round_s(best_s)), evidence)


def _length_s(unit: str, manifest: Manifest, known: Sequence[Past]) -> float | None:
    """Return how long one second, step or epoch lasts."""
    steps_s = [past.step_s for past in known if past.step_s]
    if unit == "s" or not steps_s:
        return 1.0 if unit == "s" else None
    samples = [past.epoch_samples for past in known if past.epoch_samples]
    if unit == "epochs" and not samples:
        return None
    return median(steps_s) * (
        max(samples) / manifest.training.batch_size if unit == "epochs" else 1.0
    )


def _nodes(here: Sequence[Past]) -> int:
    return max((past.nodes for past in here), default=1)


def _round_s(seconds: float) -> int:
    """Return a duration that a person would write."""
    step_s = 1 if seconds < 60 else 60 if seconds < 7200 else 900
    return max(1, step_s * round(seconds / step_s))
