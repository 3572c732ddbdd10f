"""One picture of some trainings: curves, the six answers, learners, the log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dlctl.contract import Status
from dlctl.contract.measured.utilisation import CPU_PERCENT, GPU_PERCENT, MEMORY_RSS_BYTES, gpu_name
from dlctl.contract.metrics import NO_STEP, EventKind, Source
from dlctl.outputs.insight import Insight
from dlctl.record import Record
from dlctl.series.answers import BAD, GOOD, UNKNOWN, main_curve
from dlctl.series.best import best_of
from dlctl.series.curve import Curve
from dlctl.series.run import Run
from dlctl.series.smooth import smoothed
from dlctl.terminal.plot import Drawn, Plot, draw
from dlctl.terminal.text import BOLD, CURVES, DIM, GREEN, RED, YELLOW, Line, beside, cut
from dlctl.units import format_span

_SIGNS = {GOOD: ("✓", GREEN), BAD: ("!", RED), UNKNOWN: ("·", DIM)}
_STATES = {"FAILED": RED, "COMPLETED": GREEN, "HALTED": YELLOW, "CANCELLED": YELLOW}
_MARKS = {
    EventKind.BEGIN.value: "▲", EventKind.CHECKPOINT.value: "┴", EventKind.ORDER.value: "◆",
    EventKind.VERDICT.value: "■", EventKind.LEARNING_RATE.value: "◇",
    EventKind.PLATEAU.value: "═",
}  # fmt: skip
_SHORT = {
    "guessing": "guessing", "plateau": "plateau", "checkpoint": "checkpoint",
    "learning_rate": "rate", "stable": "stable", "validation": "validation",
}  # fmt: skip
_WIDE = 130
"""From this width on, answers and log stand beside the curves."""
_SMOOTH = 0.9
KEYS = "←→ metric  ↑↓ training  l log  s smooth  t time  +- zoom  p pause  q quit"


@dataclass(frozen=True)
class Shown:
    """What is known of one training."""

    record: Record
    run: Run
    insight: Insight = field(default_factory=Insight)
    learners: Sequence[Status] = ()
    lines: Sequence[str] = ()
    trouble: str = ""
    """Why its site does not answer."""


@dataclass(frozen=True)
class View:
    """What the person chose to see."""

    metric: int = 0
    training: int = 0
    logarithmic: bool = False
    smooth: bool = False
    by_time: bool = False
    zoom: float = 1.0
    """The share of the whole that is shown, up to the newest point."""
    paused: bool = False

    def pressed(self, key: str, metrics: int, trainings: int) -> View:
        """Return the view after a key."""
        if key in ("right", "left", "down", "up"):
            step = 1 if key in ("right", "down") else -1
            if key in ("right", "left"):
                return replace(self, metric=(self.metric + step) % max(1, metrics))
            return replace(self, training=(self.training + step) % max(1, trainings))
        if key in ("+", "="):
            return replace(self, zoom=max(1 / 4096, self.zoom / 2))
        if key == "-":
            return replace(self, zoom=min(1.0, self.zoom * 2))
        switches = {"l": "logarithmic", "s": "smooth", "t": "by_time", "p": "paused"}
        if name := switches.get(key):
            return replace(self, **{name: not getattr(self, name)})
        return self


def metric_names(shown: Sequence[Shown]) -> list[str]:
    """Return the names of curves: the judged one, the loss, the others, the nodes' last."""
    judged = [c.key.name for each in shown if (c := main_curve(each.run)) is not None]
    keys = sorted({
        (k.source == Source.NODE.value, k.name != "loss", k.name)
        for each in shown for k in each.run.curves
    })  # fmt: skip
    return list(dict.fromkeys([*judged[:1], *(name for *_, name in keys)]))


def frame(
    shown: Sequence[Shown], view: View, columns: int, rows: int, now: float, keys: bool = True
) -> list[Line]:
    """Return exactly `rows` lines, none wider than `columns`.

    Args:
        now: Unix seconds.
        keys: whether the last line tells the keys.
    """
    chosen = shown[view.training % len(shown)]
    head = _heads(shown, view, now)
    foot = [Line().add(KEYS, DIM)] if keys else []
    room = max(6, rows - len(head) - len(foot))
    if columns >= _WIDE:
        left = columns * 3 // 5
        body = beside(_curves(shown, view, left, room), _words(chosen, columns - left - 2, room),
                      left)  # fmt: skip
    else:
        words = _words(chosen, columns, max(3, room - max(8, room * 2 // 5)))
        body = [*_curves(shown, view, columns, room - len(words)), *words]
    lines = [*head, *body]
    lines = [*lines[: rows - len(foot)], *[Line()] * (rows - len(foot) - len(lines)), *foot]
    return [line.fitted(columns) for line in lines][:rows]


def _heads(shown: Sequence[Shown], view: View, now: float) -> list[Line]:
    if len(shown) == 1:
        return _head(shown[0], now)
    lines = []
    for index, each in enumerate(shown):
        line = Line().add("▸ " if index == view.training % len(shown) else "  ", BOLD)
        line.add("● ", CURVES[index % len(CURVES)])
        lines.append(Line([*line.pieces, *_head(each, now)[0].pieces]))
    return lines


def _head(each: Shown, now: float) -> list[Line]:
    record, run = each.record, each.run
    line = Line().add(record.training_id, BOLD).add(" ")
    line.add(str(record.state), _STATES.get(str(record.state), CURVES[0]))
    step = run.last_step
    of = f" of {record.epochs}" if record.epochs else ""
    parts = [f"attempt {record.attempt}" if record.attempt > 1 else ""]
    parts.append("" if record.epoch is None else f"epoch {record.epoch}{of}")
    parts.append("" if step == NO_STEP else f"step {step:,}")
    if record.done is not None and not record.state.final:
        parts.append(f"{100 * record.done:.0f} %")
    if (left := each.insight.left) is not None:
        parts.append(f"{format_span(left.low_s)} to {format_span(left.high_s)} left")
    for part in filter(None, parts):
        line.add(f" · {part}")
    if record.stale_since is not None:
        line.add(f" · stale since {format_span(now - record.stale_since)}", YELLOW)
    more = each.trouble or (record.reason if str(record.state) != "TRAINING" else "")
    return [line, Line().add(more, YELLOW if each.trouble else DIM)] if more else [line]


# Curves ------------------------------------------------------------------------------------------


def _curves(shown: Sequence[Shown], view: View, columns: int, rows: int) -> list[Line]:
    names = metric_names(shown)
    if not names:
        return [Line().add("nothing has been measured yet", DIM), *[Line()] * (rows - 1)]
    name = names[view.metric % len(names)]
    chosen = _chosen(shown, name)
    begin, end = _window([curve for curve, _ in chosen], view)
    drawn = []
    for curve, colour in chosen:
        columns_ = curve.view(begin, end, 2 * columns, view.by_time)
        if view.smooth:
            drawn.append(Drawn(columns_, colour, faint=True))
            columns_ = smoothed(columns_, _SMOOTH)
        drawn.append(Drawn(columns_, colour))
    marks = _marks(shown[view.training % len(shown)], view)
    plot = Plot(drawn, begin, end, view.logarithmic, view.by_time, marks)
    legends = _legend(name, chosen, shown, view, columns)
    return [*legends, *draw(plot, columns, max(3, rows - len(legends)))]


def _chosen(shown: Sequence[Shown], name: str) -> list[tuple[Curve, int]]:
    """Return the curves of a name with their colours: of several trainings one each."""
    if len(shown) == 1:
        curves = shown[0].run.named(name)
        return [(c, CURVES[i % len(CURVES)]) for i, c in enumerate(curves[: len(CURVES)])]
    found = []
    for index, each in enumerate(shown):
        curves = each.run.named(name)
        validated = [c for c in curves if c.key.group not in ("", "train")]
        if mine := (validated or curves)[:1]:
            found.append((mine[0], CURVES[index % len(CURVES)]))
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
    name: str, chosen: Sequence[tuple[Curve, int]], shown: Sequence[Shown], view: View, columns: int
) -> list[Line]:
    line = Line().add(name, BOLD)
    for curve, colour in chosen:
        label = curve.key.shown if len(shown) == 1 else ""
        label = label.removesuffix(name).strip() or ("" if len(chosen) == 1 else "train")
        if len(shown) == 1:
            line.add("  ● ", colour).add(f"{label} " if label else "")
            line.add(format(curve.last, ".4g"))
            if (best := best_of(curve.key.name, curve.values())) is not None:
                line.add(f" (best {best[1]:.4g} at {best[0]:,.0f})", DIM)
    how = [word for on, word in ((view.logarithmic, "log"), (view.smooth, "smoothed"),
           (view.by_time, "by time"), (view.paused, "paused"),
           (view.zoom < 1, f"last {100 * view.zoom:.3g} %")) if on]  # fmt: skip
    if how:
        line.add(f"  [{', '.join(how)}]", DIM)
    return [line.fitted(columns)]


# Words -------------------------------------------------------------------------------------------


def _words(each: Shown, columns: int, rows: int) -> list[Line]:
    answers = []
    for answer in each.insight.answers:
        sign, style = _SIGNS.get(answer.state, ("•", 0))
        text = _SHORT.get(answer.key, answer.key).ljust(10)
        answers.append(
            Line().add(f"{sign} ", style).add(f"{text} ", DIM).add(answer.text).fitted(columns)
        )
    learners = _learners(each, columns)
    told = [Line().add("  " + text).fitted(columns) for text in each.insight.utilisation]
    room = max(0, rows - len(answers))
    learners = learners[: max(1, room // 3)] if learners and room >= 3 else []
    told = told[: max(0, (room - len(learners)) // 3)]
    left = rows - len(answers) - len(learners) - len(told)
    log = [Line().add(cut(text, columns), DIM) for text in list(each.lines)[-left:]] if left else []
    return [*answers, *learners, *told, *log][:rows]


def _learners(each: Shown, columns: int) -> list[Line]:
    lines = []
    for status in each.learners:
        line = Line().add(f"  learner {status.rank} on {status.host}: ", DIM)
        line.add(str(status.state.value).lower())
        for word, value in _use(each.run, status.rank):
            line.add(f" · {word} ", DIM).add(value)
        lines.append(line.fitted(columns))
    return lines


def _use(run: Run, rank: int) -> list[tuple[str, str]]:
    mine = {
        key.name: curve.last for key, curve in run.curves.items()
        if key.source == Source.NODE.value and key.learner == rank and len(curve)
    }  # fmt: skip
    found = []
    if (cpu := mine.get(CPU_PERCENT)) is not None:
        found.append(("CPU", f"{cpu:.0f} %"))
    if (memory := mine.get(MEMORY_RSS_BYTES)) is not None:
        found.append(("memory", f"{memory / 2**20:,.0f} MiB"))
    for index in range(16):
        if (gpu := mine.get(gpu_name(index, GPU_PERCENT))) is not None:
            found.append((f"GPU {index}", f"{gpu:.0f} %"))
    return found
