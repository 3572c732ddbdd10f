"""One picture of some trainings: curves, the six answers, learners, the log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlctl.contract import State
from dlctl.contract.metrics import NO_STEP, EventKind
from dlctl.series.curve import Curve, smoothed
from dlctl.series.pace import progress
from dlctl.series.readable import readable
from dlctl.series.run import Run
from dlctl.service.describe import progress_in_words
from dlctl.terminal.plot import Drawn, Plot, beyond, draw, robust_limits
from dlctl.terminal.text import BOLD, CURVES, DIM, Line, beside, page
from dlctl.terminal.words import Shown, Still, heading, help_on, why, words

_MARKS = {
    EventKind.BEGIN.value: "▲", EventKind.CHECKPOINT.value: "┴", EventKind.ORDER.value: "◆",
    EventKind.VERDICT.value: "■", EventKind.LEARNING_RATE.value: "◇",
    EventKind.PLATEAU.value: "═",
}  # fmt: skip
_WIDE = 130
"""From this width on, answers and log stand beside the curves."""
_SMOOTH = 0.97
"""The share that the past keeps after a thousandth of a run."""
KEYS = "←→ metric  ↑↓ run  l log  s smooth  r robust  t time  +- zoom  ? help  q quit"
HELP = (
    ("← →", "another metric"), ("↑ ↓", "another training"), ("l", "logarithmic, or not"),
    ("s", "smoothed, with the raw values behind, or not"),
    ("r", "robust: y without the rarest hundredth of the values, or all of y"),
    ("t", "by time of day, or by steps"), ("+ -", "only the newest half, quarter, …; more of it"),
    ("p", "pause, or go on"), ("Ctrl-Z", "back to the shell until `fg`"),
    ("q", "leave; the training goes on"), ("?", "this help, or the curves"),
    ("", ""),
    ("▲", "an attempt begins"), ("┴", "checkpoint"), ("◆", "order"), ("◇", "another learning rate"),
    ("═", "a plateau begins"), ("■", "verdict"),
)  # fmt: skip
"""The keys, and the marks below the curves."""


@dataclass(frozen=True)
class View(Still):
    """The choices of the person who watches."""

    metric: int = 0
    training: int = 0
    logarithmic: bool = False
    smooth: bool = False
    by_time: bool = False
    zoom: float = 1.0
    """The share of the whole that is shown, up to the newest point."""
    paused: bool = False
    robust: bool = False
    """Whether the rarest values are left out of the range of y."""
    help: bool = False

    def pressed(self, key: str, metrics: int, trainings: int) -> View:
        """Return the view after a key; each key but `?` ends the help."""
        if key == "?" or self.help:
            view = replace(self, help=not self.help)
            return view if key == "?" else view.pressed(key, metrics, trainings)
        if key in ("right", "left", "down", "up"):
            step = 1 if key in ("right", "down") else -1
            if key in ("right", "left"):
                return replace(self, metric=(self.metric + step) % max(1, metrics))
            return replace(self, training=(self.training + step) % max(1, trainings))
        if key in ("+", "="):
            return replace(self, zoom=max(1 / 4096, self.zoom / 2))
        if key == "-":
            return replace(self, zoom=min(1.0, self.zoom * 2))
        switches = {"l": "logarithmic", "s": "smooth", "t": "by_time", "p": "paused",
                    "r": "robust"}  # fmt: skip
        if name := switches.get(key):
            return replace(self, **{name: not getattr(self, name)})
        return self


def metric_names(shown: Sequence[Shown]) -> list[str]:
    """Return the names of curves, those of the first training first."""
    return list(dict.fromkeys(name for each in shown for name in each.names))


def frame(
    shown: Sequence[Shown], view: View, columns: int, rows: int, now: float, *,
    keys: bool = True,
) -> list[Line]:  # fmt: skip
    """Return exactly `rows` lines, none wider than `columns`.

    Args:
        now: Unix seconds.
        keys: whether the last line tells the keys.
    """
    chosen = shown[view.training % len(shown)]
    head = _heads(shown, view, columns, now)
    room = max(6, rows - len(head) - keys)
    if view.help:
        body = help_on(HELP)
    elif columns >= _WIDE:
        left = columns * 3 // 5
        curves = _curves(shown, view, left, room)
        body = beside(curves, words(chosen, columns - left - 2, room), left)
    else:
        text = words(chosen, columns, max(3, room - max(10, room * 2 // 5)))
        body = [*_curves(shown, view, columns, room - len(text)), *text]
    return page(head, body, KEYS if keys else "", columns, rows)


def _heads(shown: Sequence[Shown], view: View, columns: int, now: float) -> list[Line]:
    """Return a line for each training, and why the chosen one is not just training."""
    chosen = shown[view.training % len(shown)]
    lines = []
    for index, each in enumerate(shown):
        line = Line()
        if len(shown) > 1:
            line.add("▸ " if each is chosen else "  ", BOLD)
            line.add("● ", CURVES[index % len(CURVES)])
        lines.append(_head(line, each, now))
    is_known = chosen.record.state is State.TRAINING
    return [*lines, *why(chosen.trouble, "" if is_known else chosen.record.reason, columns)]


def _head(line: Line, each: Shown, now: float) -> Line:
    record = replace(each.record, **progress(each.run, each.record)._asdict())
    parts = progress_in_words(record)
    if (left := each.insight.left) is not None:
        parts.append(left.text)
    return heading(line, record, parts, now)


# Curves ------------------------------------------------------------------------------------------


def _curves(shown: Sequence[Shown], view: View, columns: int, rows: int) -> list[Line]:
    names = metric_names(shown)
    if not names:
        return [Line().add("nothing has been measured yet", DIM)]
    name = names[view.metric % len(names)]
    chosen = _chosen(shown, name)
    if all(curve.points.step_last[-1] == NO_STEP for curve, _, _ in chosen if len(curve)):
        view = replace(view, by_time=True)  # the program tells no step
    begin, end = _window([curve for curve, _, _ in chosen], view)
    drawn = []
    for curve, colour, run in chosen:
        raw = curve.view(begin, end, 2 * columns, view.by_time)
        drawn.append(Drawn(raw, colour, faint=view.smooth))
        if view.smooth:
            length = run.last_step, _seconds(curve)
            values = smoothed(curve, _SMOOTH, length, raw, by_time=view.by_time)
            drawn.append(Drawn(raw.holding(values), colour))
    marks = _marks(shown[view.training % len(shown)], view)
    limits = robust_limits(drawn, view.logarithmic) if view.robust else None
    plot = Plot(drawn, begin, end, view.logarithmic, view.by_time, marks, limits)
    legends = _legend(name, chosen, shown, view, columns, beyond(plot))
    return [*legends, *draw(plot, columns, max(3, rows - len(legends)))]


def _seconds(curve: Curve) -> float:
    first, last = curve.points.time[0], curve.points.time[-1]
    return last - first if last > first else 0.0


def _chosen(shown: Sequence[Shown], name: str) -> list[tuple[Curve, int, Run]]:
    """Return the curves of a name with colour and training: of several trainings one each."""
    if len(shown) == 1:
        run = shown[0].run
        curves = run.named(name)[: len(CURVES)]
        return [(c, CURVES[i % len(CURVES)], run) for i, c in enumerate(curves)]
    found = []
    for index, each in enumerate(shown):
        curves = each.run.named(name)
        validated = [c for c in curves if c.key.group not in ("", "train")]
        if mine := (validated or curves)[:1]:
            found.append((mine[0], CURVES[index % len(CURVES)], each.run))
    return found


def _window(curves: Sequence[Curve], view: View) -> tuple[float, float]:
    axes = [c.points.time if view.by_time else c.points.step_last for c in curves if len(c)]
    if not axes:
        return 0.0, 1.0
    first, last = min(axis[0] for axis in axes), max(axis[-1] for axis in axes)
    if not view.by_time:
        first = min(first, 0.0)
    return last - (last - first) * view.zoom, max(last, first + 1e-9)


def _marks(each: Shown, view: View) -> list[tuple[float, str]]:
    found = []
    for event in (*each.run.events, *each.insight.events):
        at = event.time if view.by_time else event.step
        if (sign := _MARKS.get(event.kind)) and at is not None and at != NO_STEP:
            found.append((at, sign))
    return sorted(found, key=lambda mark: mark[1] != "┴")  # the others over checkpoints


def _legend(
    name: str,
    chosen: Sequence[tuple[Curve, int, Run]],
    shown: Sequence[Shown],
    view: View,
    columns: int,
    cut_off: str,
) -> list[Line]:
    line = Line().add(name, BOLD)
    for curve, colour, _ in chosen:
        label = curve.key.shown.removesuffix(name).strip() or ("" if len(chosen) == 1 else "train")
        if len(shown) > 1:  # the heads say whose colour it is
            label = ""
        line.add("  ● ", colour).add(f"{label} " if label else "")
        line.add(readable(name, curve.last))
        best = curve.best() if len(shown) == 1 else None
        if best is not None:
            line.add(f" (best {readable(name, best[1])} at {best[0]:,.0f})", DIM)
    how = [word for on, word in ((view.logarithmic, "log"), (view.smooth, "smoothed"),
           (view.robust, f"robust, {cut_off}"),
           (view.by_time, "by time"), (view.paused, "paused"),
           (view.zoom < 1, f"last {100 * view.zoom:.3g} %")) if on]  # fmt: skip
    if not how:
        return [line.fitted(columns)]
    modes = Line().add(f"  [{', '.join(how)}]", DIM)
    if line.width + modes.width > columns:  # how it is drawn is never cut off
        return [line.fitted(columns), modes.fitted(columns)]
    return [Line([*line.pieces, *modes.pieces])]
