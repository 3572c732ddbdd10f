"""A frame fits its terminal, whatever is in it, and shows what matters."""

from __future__ import annotations

import math
import random

import pytest
from login_side import make_record

from dlctl.contract import State
from dlctl.contract.measured.pyramid import Bin
from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.outputs.insight import insight
from dlctl.series.curve import Columns
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.terminal.frame import KEYS, Shown, View, frame, metric_names
from dlctl.terminal.plot import Drawn, Plot, draw
from dlctl.terminal.text import Line, cut, width_of

SIZES = [(20, 5), (40, 12), (80, 24), (131, 30), (200, 60)]
HOSTILE = "\x1b[31m<b>\t数据\u0301 loss" + "y" * 300


def run_of(seed=0, count=400, name="loss"):
    run, draw = Run(f"t-{seed}"), random.Random(seed)
    loop = Origin(1, 0, Source.LOOP)
    run.add(loop, MetricsLine(0, 1, 1000.0, event="training begins", kind=EventKind.BEGIN.value))
    for step in range(1, count + 1):
        value = math.exp(-step / 100) + draw.gauss(0, 0.01)
        line = {name: value, "accuracy": 1 - value, "odd": None}
        run.add(loop, MetricsLine(step, 1 + step // 100, 1000.0 + step, line))
        if step % 50 == 0:
            run.add(loop, MetricsLine(step, 1, 1000.0, {"validation_accuracy": 1 - value}))
    node = Origin(1, 0, Source.NODE)
    run.add(node, MetricsLine(count, 1, 1400.0, {"cpu_percent": 97.0, "gpu0_percent": 31.0}))
    return run


def shown(run, tmp_path, **changes):
    record = make_record(tmp_path, state=State.TRAINING, **changes)
    return Shown(record, run, insight(run, record, None, []), (), [f"learner-0 | {HOSTILE}"] * 30)


def texts(lines):
    return [line.render(False) for line in lines]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("count", [1, 3])
def test_a_frame_fits(tmp_path, columns, rows, count):
    some = [shown(run_of(i), tmp_path) for i in range(count)]
    for view in (View(), View(smooth=True, logarithmic=True, by_time=True, zoom=1 / 64)):
        lines = frame(some, view, columns, rows, 2000.0)
        assert len(lines) == rows
        assert max(line.width for line in lines) <= columns
        assert not any(c in line for line in texts(lines) for c in "\x1b\t\n")


@pytest.mark.parametrize(
    "run",
    [
        Run("empty"),
        run_of(count=1),
        run_of(name=HOSTILE),
    ],
)
def test_odd_runs_are_drawn(tmp_path, run):
    for view in [View(), View(logarithmic=True), View(metric=2, smooth=True)]:
        lines = frame([shown(run, tmp_path)], view, 80, 24, 2000.0)
        assert len(lines) == 24
        assert max(line.width for line in lines) <= 80


def test_the_judged_metric_comes_first_and_answers_are_told(tmp_path):
    run = run_of()
    assert metric_names([shown(run, tmp_path)])[:3] == ["accuracy", "loss", "odd"]
    text = "\n".join(texts(frame([shown(run, tmp_path)], View(), 100, 30, 2000.0)))
    assert "● validation" in text
    assert "guessing" in text and "plateau" in text
    assert KEYS in text
    assert "CPU" not in text  # no learner has said where it is


def test_keys_change_the_view():
    view = View()
    for key in ("right", "down", "l", "s", "t", "+", "p", "x"):
        view = view.pressed(key, 5, 2)
    assert view == View(1, 1, True, True, True, 0.5, True)
    assert view.pressed("left", 5, 2).pressed("left", 5, 2).metric == 4
    assert View().pressed("-", 1, 1).zoom == 1.0


def test_several_trainings_are_one_curve_each(tmp_path):
    some = [shown(run_of(i), tmp_path) for i in range(3)]
    lines = texts(frame(some, View(training=1), 100, 30, 2000.0))
    assert [line.startswith(("▸ ●", "  ●")) for line in lines[:4]] == [True, True, True, False]
    assert lines[1].startswith("▸")


def test_text_is_cut_by_the_columns_that_it_takes():
    assert cut("数据数据", 5) == "数据"
    assert width_of("é") == 1
    line = Line().add("数据", 1).add("abc")
    assert line.fitted(5).render(False) == "数据…"
    assert line.padded(10).width == 10
    assert line.render(True).startswith("\033[38;5;1m数据\033[0m")


def test_bins_that_begin_or_end_without_a_number_are_drawn():
    columns = Columns()
    for step in range(0, 4000, 40):
        odd = math.nan if step % 80 else 1.0
        columns.append(Bin(0, 2, step, step + 1, 0.0, 0.5, 1.0, odd, odd))
    columns.append(Bin(0, 2, 5000, 5001, 0.0, -math.inf, math.inf, 0.0, 0.0))
    for logarithmic in (False, True):
        lines = draw(Plot([Drawn(columns, 75)], 0, 5001, logarithmic), 60, 10)
        assert any("⣿" in text or "⡇" in text or "⠁" in text for text in texts(lines))


def test_points_without_a_time_and_odd_times_are_left_out(tmp_path):
    run = run_of()
    loop = Origin(1, 0, Source.LOOP)
    run.add(loop, MetricsLine(401, 1, None, {"accuracy": 0.5}))
    run.add(loop, MetricsLine(402, 1, 1e18, {"accuracy": 1e308}))
    for view in (View(by_time=True), View(), View(logarithmic=True, by_time=True)):
        assert len(frame([shown(run, tmp_path)], view, 80, 24, 2000.0)) == 24
