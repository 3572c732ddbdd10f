"""One picture of a search: its trials, the best so far, workers, brokers, the budget. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.search.summary import (
    best_words,
    count_words,
    left_of,
    metric_words,
    point_words,
    strategy_words,
)
from dlctl.search.waits import why_trials_wait
from dlctl.series.curve import Columns
from dlctl.series.readable import exact_span
from dlctl.terminal.plot import Drawn, Plot, draw
from dlctl.terminal.text import BOLD, CURVES, DIM, GREEN, RED, YELLOW, Line, page, width_of, wrapped
from dlctl.terminal.words import Still, heading, help_on, why
from dlctl.units import counted, format_span, natural

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.search.overview import Overview
    from dlctl.search.trials import TrialRow, Trials

_PLOT_ROWS = 9
_MOST_WAITS = 3
_LABEL = 9
KEYS = "t time  l log  p pause  ? help  q quit"
HELP = (
    ("t", "by time of day, or by how many trials have ended"), ("l", "logarithmic, or not"),
    ("p", "pause, or go on"), ("Ctrl-Z", "back to the shell until `fg`"),
    ("q", "leave; the search goes on"), ("?", "this help, or the search"),
    ("", ""),
    ("line", "the best value so far"), ("dots", "the value of each trial"),
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """The state of one search."""

    record: Record
    overview: Overview | None
    trouble: str = ""
    """Why its site does not answer, or why its files say nothing."""


@dataclass(frozen=True)
class View(Still):
    """The choices of the person who watches."""

    by_time: bool = False
    logarithmic: bool = False
    paused: bool = False
    help: bool = False

    def pressed(self, key: str) -> View:
        """Return the view after a key."""
        switches = {"t": "by_time", "l": "logarithmic", "p": "paused", "?": "help"}
        if name := switches.get(key):
            return replace(self, **{name: not getattr(self, name)})
        return self


def frame(
    shown: Shown, view: View, columns: int, rows: int, now: float, *, keys: bool = True
) -> list[Line]:
    """Return exactly `rows` lines, none wider than `columns`.

    Args:
        now: Unix seconds.
        keys: whether the last line tells the keys.
    """
    head, body = _head(shown, columns, now), list[Line]()
    if view.help:
        body = help_on(HELP)
    elif shown.overview is not None:
        body = _body(shown.overview, shown.record, view, columns, max(0, rows - len(head) - keys))
    return page(head, body, KEYS if keys else "", columns, rows)


def _head(shown: Shown, columns: int, now: float) -> list[Line]:
    record, overview = shown.record, shown.overview
    is_known = record.state in (State.TRAINING, State.COMPLETED)
    lines = [heading(Line(), record, (), now),
             *why(shown.trouble, "" if is_known else record.reason, columns)]  # fmt: skip
    if overview is None:
        return lines
    lines += wrapped(_label("strategy"), strategy_words(overview), columns)
    lines += wrapped(_label("trials"), count_words(overview), columns)
    if not record.state.final and (left := left_of(overview, record).words):
        lines += wrapped(_label("left"), left, columns)
    lines += wrapped(_label("best"), best_words(overview.trials), columns)[:2]
    for reason in why_trials_wait(overview, record)[:_MOST_WAITS]:
        lines += wrapped(_label("waits"), reason, columns, YELLOW)[:2]
    return lines


def _label(text: str) -> Line:
    return Line().add(text.ljust(_LABEL), DIM)


def _body(overview: Overview, record: Record, view: View, columns: int, rows: int) -> list[Line]:
    """Return plot, workers, brokers and trials; each gets its share, and trials the rest."""
    lines: list[Line] = []
    if rows >= _PLOT_ROWS + 2 and overview.trials.best is not None:
        lines += _plot(overview.trials, view, columns, _PLOT_ROWS)
    left = rows - len(lines)
    workers = _workers(overview, columns, max(1, left // 3)) if not record.state.final else []
    lines += [*workers[: max(0, left - 2)]]
    return [*lines, *_newest(overview.trials, rows - len(lines))]


def _plot(trials: Trials, view: View, columns: int, rows: int) -> list[Line]:
    best, each = Columns(), Columns()
    steps = trials.best_over_time()
    place = 0
    for ended, number in enumerate(trials.order, 1):
        row = trials.rows[number]
        while place < len(steps) and steps[place].ended <= ended:
            place += 1
        if place:
            best.point(ended, row.ended_at, steps[place - 1].metric)
        if row.metric is not None:
            each.point(ended, row.ended_at, row.metric)
    axis = each.time if view.by_time else each.step_last
    begin, end = (axis[0], axis[-1]) if len(axis) else (0.0, 1.0)
    if not view.by_time:
        begin = 0.0
    curves = [Drawn(each, CURVES[0], faint=True), Drawn(best, CURVES[1])]
    plot = Plot(curves, begin, max(end, begin + 1e-9), view.logarithmic, view.by_time)
    by = "by time" if view.by_time else "by trials that have ended"
    how = f"  [{by}{', log' if view.logarithmic else ''}{', paused' if view.paused else ''}]"
    legend = (Line().add(trials.spec.metric, BOLD).add("  ● ", CURVES[1]).add("best so far")
              .add("  ● ", CURVES[0]).add("each trial").add(how, DIM))  # fmt: skip
    return [legend, *draw(plot, columns, rows - 1)]


def _workers(overview: Overview, columns: int, rows: int) -> list[Line]:
    """Return a line for each broker and each worker, those that live first."""
    lines = []
    for broker in overview.brokers:
        queues = (f"{broker.owned} owned and {broker.helper} helped wait · "
                  f"{broker.processing} processing · {broker.results} results to take · "
                  f"{broker.accepted} accepted")  # fmt: skip
        odd = "".join(
            f" · {count} {word}" for count, word in
            ((broker.failed, "failed"), (broker.dropped, "dropped"), (broker.lent, "lent")) if count
        )  # fmt: skip
        lines.append(_label(f"broker {broker.broker}").add(" ").add(queues + odd).fitted(columns))
    workers = overview.workers
    jobs = {job.name: job for job in overview.jobs if job.lives}
    for name in sorted({*workers, *jobs}, key=natural):
        line = _label(name)
        if job := jobs.get(name):
            waits = job.state == "PENDING"
            line.add(job.state.lower(), YELLOW if waits else 0)
            line.add(f" ({job.reason})" if waits and job.reason else "")
            line.add(f" on {job.nodes}" if job.nodes else "")
        if worker := workers.get(name):
            line.add(f" · {counted(worker.running, 'trial')}")
            line.add("" if worker.seen_s_ago < 5 else
                     f" · last heard of {format_span(worker.seen_s_ago)} ago")  # fmt: skip
        lines.append(line.fitted(columns))
    if len(lines) > rows:
        rest = len(lines) - rows + 1
        lines = [*lines[: rows - 1], Line().add(f"and {counted(rest, 'more worker')}", DIM)]
    return lines


def _newest(trials: Trials, rows: int) -> list[Line]:
    """Return the newest trials that have ended, the newest first."""
    if rows < 2:
        return []
    if not trials.order:
        text = "no trial has ended so far" if trials.rows else "no trial so far"
        return [Line().add(text, DIM)]
    newest = [trials.rows[number] for number in reversed(trials.order[-(rows - 1) :])]
    cells = [["trial", "outcome", trials.spec.metric, "took", "worker", "point"]]
    cells += [[str(r.number), r.outcome_words, metric_words(r), exact_span(r.seconds),
               r.worker or "-", r.error or point_words(r.point, 200)] for r in newest]  # fmt: skip
    widths = [max(width_of(c) for c in column) for column in zip(*cells, strict=True)][:-1]
    best = trials.best
    lines = []
    for row, values in zip([None, *newest], cells, strict=True):
        style, line = _style(row, best), Line()
        for text, width in zip(values, widths, strict=False):
            line.pieces += Line().add(f"{text}  ", style).padded(width + 2).pieces
        lines.append(line.add(values[-1], style))
    return lines


def _style(row: TrialRow | None, best: TrialRow | None) -> int:
    if row is None:
        return DIM
    if row.failed:
        return RED
    return GREEN if best is not None and row.number == best.number else 0


def trial_line(row: TrialRow, trials: Trials, is_best: bool) -> str:
    """Return what a pipe gets of a trial that has ended."""
    value = f"{trials.spec.metric} {metric_words(row)}{' (best so far)' if is_best else ''}"
    parts = [f"trial {row.number}", row.outcome_words, value, exact_span(row.seconds),
             row.worker or "-", point_words(row.point, 10_000)]  # fmt: skip
    return "  ".join([*parts, row.error] if row.error else parts)
