"""A frame fits its terminal, whatever is in it, and shows what matters."""

import math
import random
import re
from dataclasses import replace

import pytest
from login_side import make_record

from dlctl.contract import State, Status
from dlctl.contract.measured.bins import Bin
from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.outputs.insight import insight
from dlctl.series.curve import Columns
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.terminal.frame import KEYS, View, frame, metric_names
from dlctl.terminal.plot import Drawn, Plot, draw
from dlctl.terminal.screen import Screen
from dlctl.terminal.text import Line, cut, printable, width_of, wrapped
from dlctl.terminal.words import Shown, words

SIZES = [(20, 5), (40, 12), (80, 24), (100, 30), (131, 30), (160, 40), (200, 60)]
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


def drawn(each, view=View(), columns=80, rows=24):  # noqa: B008
    """Return the lines of a frame of one training."""
    return texts(frame([each], view, columns, rows, 2000.0))


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("count", [1, 3])
def test_a_frame_fits(tmp_path, columns, rows, count):
    some = [shown(run_of(i), tmp_path) for i in range(count)]
    for view in (View(), View(smooth=True, logarithmic=True, by_time=True, zoom=1 / 64),
                 View(robust=True, logarithmic=True), View(help=True)):  # fmt: skip
        lines = frame(some, view, columns, rows, 2000.0)
        assert len(lines) == rows
        assert max(line.width for line in lines) <= columns
        assert not any(c in line for line in texts(lines) for c in "\x1b\t\n")


def run_at_odd_times():
    run, loop = run_of(), Origin(1, 0, Source.LOOP)
    run.add(loop, MetricsLine(401, 1, None, {"accuracy": 0.5}))
    run.add(loop, MetricsLine(402, 1, 1e18, {"accuracy": 1e308}))
    return run


@pytest.mark.parametrize(
    "run", [Run("empty"), run_of(count=1), run_of(name=HOSTILE), run_at_odd_times()]
)
def test_odd_runs_are_drawn(tmp_path, run):
    for view in [View(), View(logarithmic=True, by_time=True), View(metric=2, smooth=True)]:
        lines = frame([shown(run, tmp_path)], view, 80, 24, 2000.0)
        assert len(lines) == 24
        assert max(line.width for line in lines) <= 80


def test_the_judged_metric_comes_first_and_answers_are_told(tmp_path):
    run = run_of()
    assert metric_names([shown(run, tmp_path)])[:3] == ["accuracy", "loss", "odd"]
    text = "\n".join(drawn(shown(run, tmp_path), View(), 100, 30))
    assert "● validation" in text
    assert "guessing" in text and "plateau" in text
    assert KEYS in text
    assert "CPU" not in text  # no learner has said where it is


def test_keys_change_the_view():
    view = View()
    for key in ("right", "down", "l", "s", "t", "+", "p", "r", "x"):
        view = view.pressed(key, 5, 2)
    assert view == View(1, 1, True, True, True, 0.5, True, True)
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
    hostile = "\x1b[31mred\x1b[0m \x1b[2K🙂\x1b]0;title\x07"
    assert printable(hostile) == "red 🙂\\x1b]0;title\\x07"


@pytest.mark.parametrize("count", [1, 3])
def test_why_a_site_does_not_answer_is_told_whole(tmp_path, count):
    why = "me@host: plan.json of t-1 can't be read: the folder is not there; dlctl list tells more"
    some = [replace(shown(run_of(i), tmp_path), trouble=why) for i in range(count)]
    lines = texts(frame(some, View(training=count - 1), 60, 24, 2000.0))
    assert " ".join(lines[count : count + 2]) == why


def test_bins_that_begin_or_end_without_a_number_are_drawn():
    columns = Columns()
    for step in range(0, 4000, 40):
        odd = math.nan if step % 80 else 1.0
        columns.append(Bin(2, step, step + 1, 0.0, 0.5, 1.0, odd, odd, step, step, odd))
    columns.append(Bin(2, 5000, 5001, 0.0, -math.inf, math.inf, 0.0, 0.0, 5000, 5001, 0.0))
    for logarithmic in (False, True):
        lines = draw(Plot([Drawn(columns, 75)], 0, 5001, logarithmic), 60, 10)
        assert any("⣿" in text or "⡇" in text or "⠁" in text for text in texts(lines))


def test_answers_are_wrapped_between_words_where_they_stand_beside_the_curves(tmp_path):
    lines = drawn(shown(run_of(), tmp_path), View(), 160, 40)
    told = [line[98:] for line in lines]
    begin = next(i for i, line in enumerate(told) if "guessing" in line)
    assert "…" not in "".join(told[begin : begin + 10])
    whole = insight(run_of(), make_record(tmp_path), None, []).answers[0].text
    assert " ".join(" ".join(told[begin : begin + 3]).split()).startswith(f"✓ guessing {whole}")
    assert told[begin + 1].startswith(" " * 13)
    assert told[begin + 1][13] != " "


def test_a_wrapped_text_breaks_words_only_if_they_are_wider_than_a_line():
    head = Line().add("- ")
    assert texts(wrapped(head, "one two three", 11)) == ["- one two", "  three"]
    assert texts(wrapped(head, "one four five", 10)) == ["- one four", "  five"], "it just fits"
    assert texts(wrapped(head, "数据数据数据", 11)) == ["- 数据数据", "  数据"]
    assert texts(wrapped(head, "", 11)) == ["-"]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 30), (160, 40), (200, 60)])
def test_what_matters_is_visible_in_each_size(tmp_path, columns, rows):
    record = make_record(tmp_path, state=State.TRAINING)
    statuses = [status_of(rank) for rank in range(16)]
    each = Shown(record, run_of(), insight(run_of(), record, None, []), statuses, ["job | hello"])
    text = "\n".join(drawn(each, View(), columns, rows))
    for word in ("t-1 TRAINING", "● validation", "✓ guessing", "plateau", "checkpoint", "rate",
                 "stable", "learner 0 on n0", "job | hello"):  # fmt: skip
        assert word in text
    assert ("more learners" in text) == (rows < 60)
    assert any("⠀" < c <= "⣿" for c in text)


def status_of(rank, **changes):
    given = {"state": State.TRAINING, "host": f"n{rank}", "heartbeat_at": 100.0}
    return Status("learner", rank, 1, **(given | changes))


def test_learners_beyond_the_room_are_summed_up_and_odd_ones_come_first(tmp_path):
    statuses = [status_of(rank) for rank in range(16)]
    statuses[7] = status_of(7, state=State.FAILED)
    statuses[12:15] = [status_of(rank, heartbeat_at=50.0) for rank in (12, 13, 14)]
    record = make_record(tmp_path, state=State.TRAINING)
    lines = texts(words(Shown(record, Run("t-1"), learners=statuses), 80, 9))
    assert lines[0] == "  learner 7 on n7: failed"
    assert lines[1].startswith("  learner 12 on n12: training · quiet since ")
    assert lines[2] == "  and 14 more learners, 2 of them quiet"


def test_values_near_the_smallest_are_drawn_as_a_curve(tmp_path):
    run, loop = run_of(count=3), Origin(1, 0, Source.LOOP)
    for step in range(4, 60):
        run.add(loop, MetricsLine(step, 1, 1000.0 + step, {"tiny": step * 1e-301}))
    names = metric_names([shown(run, tmp_path)])
    flat = texts(frame([shown(run, tmp_path)], View(metric=names.index("tiny")), 200, 60, 2000.0))
    assert any("5.9e-300" in line for line in flat) and any("4e-301" in line for line in flat)


def test_a_robust_range_is_not_that_of_a_spike_and_says_so(tmp_path):
    run = run_of(count=300)
    loop = Origin(1, 0, Source.LOOP)
    run.add(loop, MetricsLine(301, 4, 1301.0, {"loss": 1e308}))
    for step in range(302, 330):
        run.add(loop, MetricsLine(step, 4, 1000.0 + step, {"loss": 0.05}))
    names = metric_names([shown(run, tmp_path)])
    view = View(metric=names.index("loss"))
    flat = drawn(shown(run, tmp_path), view, 200, 60)
    assert "8e+307" in "\n".join(flat)
    robust = view.pressed("r", len(names), 1)
    text = "\n".join(drawn(shown(run, tmp_path), robust, 200, 60))
    assert "8e+307" not in text
    found = re.search(r"\[robust, y is cut: at least (\d+) points beyond\]", text)
    assert found is not None
    assert 1 <= int(found[1]) <= 10
    short = drawn(shown(run_of(count=10), tmp_path), robust, 200, 60)
    assert "[robust, all values]" in "\n".join(short)


def test_help_tells_all_keys_and_the_next_key_ends_it(tmp_path):
    view = View().pressed("?", 3, 1)
    text = "\n".join(drawn(shown(run_of(), tmp_path), view, 80, 24))
    for key in ("← →", "↑ ↓", "l", "s", "r", "t", "+ -", "p", "q", "?"):
        assert f"\n{key:>8}  " in text
    assert view.pressed("?", 3, 1) == View()
    assert view.pressed("l", 3, 1) == View(logarithmic=True)


def test_a_smoothed_curve_is_smoothed_over_what_the_zoom_hides(tmp_path, monkeypatch):
    drawn = []
    real = draw

    def spy(plot, columns, rows):
        drawn.append(plot.curves[-1].columns.last[-1])
        return real(plot, columns, rows)

    monkeypatch.setattr("dlctl.terminal.frame.draw", spy)
    for zoom in (1.0, 1 / 64):
        frame([shown(run_of(), tmp_path)], View(smooth=True, zoom=zoom), 80, 24, 2000.0)
    raw = run_of().named("loss")[0].last
    assert drawn[0] == drawn[1] != raw


def test_what_is_measured_without_a_step_is_drawn_over_time(tmp_path):
    run = Run("t-1")
    for at in range(5):
        run.add(
            Origin(1, 0, Source.NODE), MetricsLine(-1, None, 100.0 + 60 * at, {"cpu_percent": at})
        )
    lines = drawn(shown(run, tmp_path), View(), 80, 30)
    assert not [line for line in lines if " -1 " in f"{line} "], lines


def test_the_rest_of_a_row_is_erased_unless_its_last_column_is_drawn(monkeypatch, capsys):
    monkeypatch.setattr(Screen, "size", (20, 5))
    screen = Screen(colours=False)
    screen._entered = True
    screen.show([Line().add("x" * 20), Line().add("ends in blanks".ljust(20)), Line().add("short")])
    sent = capsys.readouterr().out.split("\033[")
    assert [text.partition("H")[2] for text in sent if "H" in text] == [
        "x" * 20, "ends in blanks", "short",
    ]  # fmt: skip
    assert [text for text in sent if text == "K"] == ["K", "K"]


def test_an_axis_shows_no_number_twice():
    columns = Columns()
    columns.point(1, 100.0, 0.5)
    text = "".join(text for text, _ in draw(Plot([Drawn(columns, 75)], 0, 1), 40, 8)[-1].pieces)
    assert text.split() == ["0", "1"]
