"""The six questions that people ask of a training, each answered in a sentence with its evidence.

They are those of the paper on IBM's Deep Learning Service, section "Understanding Training
Progress". Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist, median
from typing import Any

from dlctl.contract.measured.judged_series import (
    RATE_NAMES,
    TRIALS,
    VALIDATED,
    is_better_lower,
    judged,
)
from dlctl.contract.measured.rates import RateChange, rate_changes
from dlctl.contract.measured.trend import noise, slope, trend
from dlctl.contract.metrics import CLASSES, LOSS, SECONDS, EventKind
from dlctl.series.curve import Curve, Ends
from dlctl.series.run import Event, Run
from dlctl.units import counted, format_bytes, format_span

GOOD, BAD, NOTE, UNKNOWN = "good", "bad", "note", "unknown"
_SURE = 2.33
_WINDOW = 100
_LEAST = 8
"""Fewer values tell nothing."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint."""

    step: int | None
    """None: its name tells none."""
    saved_at: float | None = None
    """Unix seconds."""
    size_bytes: int | None = None
    name: str = ""
    """The name of a file that a program has saved; nothing tells that it is a checkpoint."""


@dataclass(frozen=True)
class Known:
    """Facts besides the curves."""

    now: float
    """Unix seconds."""
    classes: int | None = None
    checkpoints: Sequence[Saved] = ()
    ended: bool = False
    has_model: bool = False
    """Whether it has completed, and left results or output: then it needs no checkpoint."""
    wants_checkpoints: bool = True
    """Whether anybody asked for checkpoints: nobody did of a program without `checkpoint.files`."""


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    key: str
    """Such as `plateau`, for programs."""
    question: str
    state: str
    """`good`, `bad`, `note` (neither) or `unknown`."""
    text: str
    """One sentence."""
    evidence: dict[str, Any] = field(default_factory=dict)


def answers(run: Run, known: Known) -> list[Answer]:
    """Return the answers, in the paper's order; none for a search, which is no training."""
    if any(key.group == TRIALS for key in run.curves):
        return []
    makers: tuple[tuple[str, str, Callable[[Run, Known], _Found]], ...] = (
        ("guessing", "Better than guessing?", _guessing),
        ("plateau", "On a plateau?", _plateau),
        ("checkpoint", "Checkpoint written?", _checkpoint),
        ("learning_rate", "Learning rate changed?", _learning_rate),
        ("stable", "Stable?", _stable),
        ("validation", "How often is validation?", _validation),
    )
    return [Answer(key, question, *make(run, known)) for key, question, make in makers]


_Found = tuple[str, str, dict[str, Any]]


def main_curve(run: Run) -> Curve | None:
    """Return the curve by which a training is judged."""
    key = judged(key for key, curve in run.curves.items() if len(curve))
    return None if key is None else run.curves[key]


def changes_of_rate(run: Run) -> list[RateChange]:
    """Return the changes of learner 0's learning rate; none if it changes all the time."""
    curves = [c for name in RATE_NAMES for c in run.named(name) if c.key.learner == 0]
    return rate_changes(curves[0].values()) if curves else []


def found_events(run: Run) -> list[Event]:
    """Return the events that no node has told, by step."""
    return [
        Event(
            max((a.attempt for a in run.attempts if a.first_step <= change.step), default=1),
            int(change.step), None, EventKind.LEARNING_RATE.value,
            f"learning rate from {change.before:.4g} to {change.after:.4g}",
        )
        for change in changes_of_rate(run)
    ]  # fmt: skip


def _number(value: float) -> str:
    return format(value, ".4g")


def _none(what: str, done: str, known: Known) -> str:
    return f"{what} was {done}." if known.ended else f"{what} has been {done} yet."


def _guessing(run: Run, known: Known) -> _Found:
    curve = main_curve(run)
    if curve is None or (ends := curve.ends()) is None:
        return UNKNOWN, _none("No accuracy or loss", "measured", known), {}
    name, lower = curve.key.shown, bool(is_better_lower(curve.key.name))
    best = curve.best()
    assert best is not None
    classes = known.classes or _counted_classes(run) or 0
    among = classes if classes > 1 and _is_of_classes(curve) else None
    guess = ends.first[1]
    if among:
        guess = math.log(among) if curve.key.name == LOSS else 1 / among
    how = f"guessing among {among} classes" if among else "the first one"
    better = best[1] < guess if lower else best[1] > guess
    points = curve.values()
    spread = noise([value for _, value in points])
    # The best of many guesses is better than one: 1 % for all values together (Bonferroni).
    beyond = NormalDist().inv_cdf(1 - 0.01 / max(len(points), 2))
    sure = abs(best[1] - guess) > beyond * spread * (1 if among else math.sqrt(2))
    evidence = {
        "metric": name, "best": best[1], "best_step": best[0], "guess": guess, "classes": among,
    }  # fmt: skip
    if len(points) < 2 and among is None:
        return UNKNOWN, f"Only one value of {name} is known: {_number(best[1])}.", evidence
    at = f"{run.step_word} {best[0]:.0f}"
    text = f"The best {name} is {_number(best[1])} ({at}); {how} is {_number(guess)}."
    if better and sure:
        return GOOD, f"Yes. {text}", evidence
    if better and len(points) < _LEAST:
        return UNKNOWN, f"Too few values to tell. {text}", evidence
    return BAD, f"{'Hardly' if better else 'No'}. {text}", evidence


def _counted_classes(run: Run) -> int | None:
    """Return among how many classes the model chooses, by what the loop has found in its data."""
    begins = [e for e in run.events if e.kind == EventKind.BEGIN.value]
    counts = [count for e in begins if (count := e.values.get(CLASSES))]
    return int(counts[-1]) if counts else None


def _is_of_classes(curve: Curve) -> bool:
    """Return whether guessing among classes gives this metric a value."""
    return curve.key.name == LOSS or "acc" in curve.key.name.lower()


def _plateau(run: Run, known: Known) -> _Found:
    """Return what the supervisor has told, which looks again and again and alone judges."""
    curve = main_curve(run)
    if curve is None:
        return UNKNOWN, _none("No accuracy or loss", "measured", known), {}
    name, points, changes = curve.key.shown, curve.values(), changes_of_rate(run)
    since = changes[-1].step if changes else 0.0
    recent = [(step, value) for step, value in points if step > since]
    evidence: dict[str, Any] = {"metric": name, "values": len(recent)}
    if (plateau := _newest_plateau(run, curve, since)) is not None:
        pairs = zip(curve.points.step_last, curve.points.count, strict=True)
        count = int(sum(each for step, each in pairs if step >= plateau.step))
        evidence |= {"since_step": plateau.step, "values": count}
        text = plateau.text.removeprefix("plateau: ").replace("step", run.step_word)
        return BAD, f"Yes: {text} ({count:,} values).", evidence
    if len(recent) < _LEAST:
        of = "since the learning rate changed" if changes else "so far"
        return (
            UNKNOWN,
            f"Too early to tell: {len(recent)} of {_LEAST} values of {name} {of}.",
            evidence,
        )
    newest = recent[-max(_LEAST, len(recent) // 4) :][-_WINDOW:]
    sign = -1 if is_better_lower(curve.key.name) else 1
    gain = sign * slope(newest) * (newest[-1][0] - newest[0][0])
    if gain > 0 and sign * trend([value for _, value in newest]) > _SURE:
        over = f"over the newest {len(newest)} values"
        return GOOD, f"No: {name} still gets better, by {_number(gain)} {over}.", evidence
    return GOOD, f"No plateau of {name} has been found.", evidence


def _newest_plateau(run: Run, curve: Curve, since: float) -> Event | None:
    """Return the newest event of a plateau of a curve, unless it has got better afterwards."""
    beginning = f"plateau: {curve.key.shown} has "
    for event in reversed(run.events):
        if event.kind != EventKind.PLATEAU.value or event.step <= since:
            continue
        if event.text.startswith(beginning):
            sign = -1 if is_better_lower(curve.key.name) else 1
            newest = median(value for _, value in curve.values()[-_LEAST:])
            level, margin = event.values.get("level"), event.values.get("margin")
            is_over = level is not None and sign * (newest - level) > (margin or 0.0)
            return None if is_over else event
    return None


def _checkpoint(run: Run, known: Known) -> _Found:
    if entries := [each for each in known.checkpoints if each.name]:
        return _saved_by_itself(entries, known)
    saved = max(known.checkpoints, key=lambda c: -1 if c.step is None else c.step, default=None)
    if saved is None:
        events = [e for e in run.events if e.kind == EventKind.CHECKPOINT.value]
        if not events:
            is_lost = known.ended and known.wants_checkpoints and not known.has_model
            return (BAD if is_lost else NOTE), _none("No checkpoint", "written", known), {}
        saved = Saved(events[-1].step, events[-1].time)
    evidence: dict[str, Any] = {
        "step": saved.step, "saved_at": saved.saved_at, "size_bytes": saved.size_bytes,
    }  # fmt: skip
    behind = None if saved.step is None else max(0, run.last_step - saved.step)
    parts = ["Yes" if saved.step is None else f"Yes, of step {saved.step}"]
    if saved.size_bytes is not None:
        parts.append(format_bytes(saved.size_bytes))
    if saved.saved_at is not None and not known.ended:
        parts.append(f"{format_span(known.now - saved.saved_at)} ago")
    text = ", ".join(parts) + (f"; {behind} steps have been done since." if behind else ".")
    return GOOD, text, evidence | {"steps_since": behind}


def _saved_by_itself(entries: Sequence[Saved], known: Known) -> _Found:
    """Return what lies in CHECKPOINT_DIR of which nothing tells that it is a checkpoint."""
    newest = entries[0]
    facts = [format_bytes(newest.size_bytes or 0)]
    if newest.saved_at is not None:
        facts.append(f"{format_span(known.now - newest.saved_at)} ago")
    more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
    text = (
        f"The program has saved {newest.name} ({', '.join(facts)}){more}. dlctl can't tell whether "
        "that is whole: checkpoint.files in the manifest says which files are checkpoints."
    )
    return NOTE, text, {"saved": [each.name for each in entries], "saved_at": newest.saved_at}


def _took(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def _learning_rate(run: Run, _: Known) -> _Found:
    curves = next(filter(None, map(run.named, RATE_NAMES)), [])
    if not curves or not curves[0].values():
        return UNKNOWN, "No learning rate has been measured.", {}
    changes, now = changes_of_rate(run), curves[0].last
    if not changes:
        first = curves[0].values()[0][1]
        if not math.isclose(first, now, rel_tol=1e-9):
            text = f"It changes gradually, from {_number(first)} to {_number(now)} by now."
            return NOTE, text, {"first": first, "now": now, "changes": []}
        return NOTE, f"No, it is {_number(now)} from the beginning.", {"now": now, "changes": []}
    last = changes[-1]
    times = "once" if len(changes) == 1 else f"{len(changes)} times"
    text = (
        f"Yes, {times}, last after {run.step_word} {last.step:.0f} from {_number(last.before)} to "
        f"{_number(last.after)}{_effect(run, last)}."
    )
    return NOTE, text, {"now": now, "changes": [vars(change) for change in changes]}


def _effect(run: Run, change: RateChange) -> str:
    """Return what a change did to the judged metric, in words."""
    if (curve := main_curve(run)) is None:
        return ""
    points = curve.values()
    before = [value for step, value in points if step <= change.step][-5:]
    after = [value for step, value in points if step > change.step][:5]
    if not before or not after:
        return ""
    how = "" if len(before) == len(after) == 1 else (
        f" (medians of {counted(len(before), 'value')} before, and {len(after)} after)"
    )  # fmt: skip
    words = f"{_number(median(before))} to {_number(median(after))}"
    return f": {curve.key.shown} went from {words}{how}"


def _stable(run: Run, _: Known) -> _Found:
    losses = [c for c in run.named(LOSS) if c.key.group not in VALIDATED and c.key.learner == 0]
    long = (curve for curve in losses if len(curve) >= _LEAST)
    curve = next(long, losses[0] if losses else main_curve(run))
    if curve is None or len(curve) < _LEAST:
        return UNKNOWN, "Too few values to tell.", {}
    name, newest = curve.key.shown, curve.points.last
    if math.isnan(newest[-1]):
        known = (at for at in range(len(newest) - 1, -1, -1) if not math.isnan(newest[at]))
        step = curve.points.step_last[next(known, -1) + 1]
        text = f"No: {name} is not a number since {run.step_word} {step:.0f}."
        return BAD, text, {"metric": name, "since_step": step}
    points = curve.values()[-_WINDOW:]
    values = [value for _, value in points]
    lower, middle = is_better_lower(curve.key.name) is not False, median(values)
    z, wiggle = trend(values) * (1 if lower else -1), noise(values)
    moved = abs(slope(points) * (points[-1][0] - points[0][0]))
    # Near zero a loss always varies by much of itself. A spike makes no range.
    span, peak = _way_and_peak(curve.ends(), run.step_word, lower=lower)
    scale = max(abs(middle), span / 10)
    share = wiggle / scale if scale else 0.0
    varies = f"{100 * share:.3g} %"
    if scale > abs(middle):
        varies = f"{100 * wiggle / span:.2g} % of its range"
    evidence = {"metric": name, "values": len(values), "noise": wiggle, "trend_z": z}
    if z > _SURE and moved > 2 * wiggle and moved > 0.1 * abs(middle):
        text = f"No, it diverges: {name} got worse by {_number(moved)} over {len(values)} values."
        return BAD, text, evidence
    steps = [b - a for a, b in pairwise(values)]
    turns = sum(before * after < 0 for before, after in pairwise(steps))
    if share > 0.25 and turns > len(values) / 3:
        text = f"It oscillates: {name} varies by {varies} between neighbouring values."
        return NOTE, text, evidence
    return GOOD, f"Yes: {name} varies by {varies} between neighbours{peak}.", evidence


def _way_and_peak(ends: Ends | None, step_word: str, *, lower: bool) -> tuple[float, str]:
    """Return how far a curve has come from its first value, and where it was far worse."""
    if ends is None:
        return 0.0, ""
    best, worst = (ends.lowest, ends.highest) if lower else (ends.highest, ends.lowest)
    first = ends.first[1]
    span = abs(first - best[1])
    if not math.isfinite(span):
        return 0.0, ""
    if not abs(worst[1] - first) > 2 * max(span, abs(first)):
        return span, ""
    return span, f", and was {_number(worst[1])} at {step_word} {worst[0]:.0f}"


def _validation(run: Run, known: Known) -> _Found:
    events = [e for e in run.events if e.kind == EventKind.VALIDATION.value]
    steps = [float(e.step) for e in events]
    took = [s for e in events if (s := e.values.get(SECONDS)) is not None]
    if not steps:
        curves = [c for k, c in sorted(run.curves.items()) if k.group in VALIDATED and len(c)]
        steps = [step for step, _ in curves[0].values()] if curves else []
    if not steps:
        return UNKNOWN, _none("No validation", "done", known), {}
    so_far = "" if known.ended else " so far"
    if len(steps) == 1:
        text = f"Once{so_far}, at {run.step_word} {steps[0]:.0f}"
    else:
        gap = median(b - a for a, b in zip(steps, steps[1:], strict=False))
        every = f"Every {run.step_word}" if gap <= 1 else f"Every {gap:.0f} {run.step_word}s"
        text = f"{every}, {len(steps)} times{so_far}"
    cost = f"; it takes {_took(median(took))}." if took else "."
    return NOTE, text + cost, {"steps": steps[-20:], "seconds": median(took) if took else None}
