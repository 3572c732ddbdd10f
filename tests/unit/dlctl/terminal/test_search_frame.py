"""A frame of a search fits its terminal, whatever is in it, and shows what matters."""

from dataclasses import replace

import pytest
from login_side import make_record
from made_search import T0, job, overview_of, trials_of, worker

from dlctl.contract import State
from dlctl.search.overview import Overview
from dlctl.terminal.search_frame import Shown, View, frame, trial_line
from dlctl.terminal.text import texts, width_of

RECORD = make_record(state=State.TRAINING, training_id="made-3k9f")
HOSTILE = "\x1b[31m<b>\t数据 " + "y" * 300


def shown(trials, workers=(), jobs=(), record=RECORD, trouble=""):
    return Shown(record, overview_of(trials, workers, jobs), trouble)


def drawn(what, columns=80, rows=30, view=View(), keys=False):  # noqa: B008
    return texts(frame(what, view, columns, rows, T0 + 2000, keys=keys))


@pytest.mark.parametrize(("columns", "rows"), [(20, 5), (40, 12), (80, 24), (131, 30), (200, 60)])
@pytest.mark.parametrize("count", [0, 1, 40, 1000])
def test_a_frame_fits(columns, rows, count):
    trials = trials_of(count, max(0, count - 3))
    workers = [worker(f"w1.{n}", 1) for n in range(12)]
    what = shown(trials, workers, [job(f"w1.{n}") for n in range(12)], trouble=HOSTILE)
    for view in (View(), View(by_time=True, logarithmic=True, paused=True), View(help=True)):
        lines = frame(what, view, columns, rows, T0 + 2000)
        assert len(lines) == rows
        assert all(line.width <= columns for line in lines)
        assert not any("\x1b" in line.render(False) for line in lines)


def test_a_frame_tells_trials_workers_brokers_budget_and_the_best():
    trials = trials_of(12, 9, failed=0.3)
    text = "\n".join(
        drawn(
            shown(trials, [worker("w1.0", 2)], [job("w1.0"), job("w1.1", "PENDING", "Resources")])
        )
    )
    best = trials.best
    assert "made-3k9f TRAINING" in text
    failed = sum(row.failed for row in trials.rows)
    assert f"9 of 40 ended, {failed} failed, 3 outstanding (2 of them run)" in text
    assert "left     31 trials, " in text and "of the hub's time; likely done in 16 min" in text
    assert f"best     loss {best.metric:.6g} (trial {best.number}:" in text
    assert "waits    1 trial waits: 1 worker job is waiting in the queue: Resources" in text
    assert "broker b0 1 owned and 0 helped wait · 2 processing" in text
    assert "w1.1     pending (Resources)" in text and "w1.0     running · 2 trials" in text
    assert "best so far" in text and "ValueError: the loss is <b>odd</b>" in text


def test_the_newest_trials_come_first_and_the_best_is_marked():
    trials = trials_of(6, failed=0.0)
    lines = drawn(shown(trials))
    first = next(i for i, line in enumerate(lines) if line.startswith("trial  outcome"))
    assert [line.split()[0] for line in lines[first + 1 :]] == ["5", "4", "3", "2", "1", "0"]


def test_columns_stand_below_their_names_whatever_the_metric_is_called():
    trials = trials_of(3, failed=0.0)
    trials = replace(trials, spec=replace(trials.spec, metric="验证集上的损失值"))
    lines = drawn(shown(trials))
    head = next(i for i, line in enumerate(lines) if line.startswith("trial  outcome"))
    row, took = lines[head + 1], lines[head].index("took")
    before = width_of(lines[head][:took])
    start = next(i for i in range(len(row)) if width_of(row[:i]) == before)
    assert row[start - 2 : start] == "  " and row[start] != " "


def test_without_a_trial_it_says_so():
    assert "no trial so far" in drawn(shown(trials_of(0)))
    lines = drawn(shown(trials_of(2, 0)))
    assert "no trial has ended so far" in lines
    assert "best     no trial has ended well so far" in lines
    lines = drawn(shown(trials_of(2, failed=1.0)))
    failed = "; trial 1 failed: ValueError: the loss is <b>odd</b>"
    assert f"no trial has ended well so far{failed}" in " ".join(" ".join(lines).split())


def test_what_is_not_known_is_not_guessed():
    broken = Shown(RECORD, None, "search/trials.jsonl: line 3 is no event of a search")
    assert drawn(broken)[1] == "search/trials.jsonl: line 3 is no event of a search"
    without_brokers = Shown(RECORD, Overview(trials_of(4, 1)))
    assert "trials   1 of 40 ended, 0 failed, 3 outstanding" in drawn(without_brokers)


def test_a_search_that_has_ended_shows_neither_budget_nor_workers():
    done = replace(RECORD, state=State.COMPLETED, reason="The learner ended with exit code 0.")
    text = "\n".join(drawn(shown(trials_of(5), [worker("w1.0")], [job("w1.0")], done)))
    assert "left" not in text and "w1.0     running" not in text and "exit code" not in text


def test_the_plot_reaches_the_best_value():
    trials = trials_of(30, failed=0.0)
    lines = drawn(shown(trials))
    low = next(line for line in lines if line.lstrip().startswith(f"{trials.best.metric:.3g} ┤"))
    assert any("⠀" < c <= "⣿" for c in low)
    assert any(line.endswith(" 30") for line in lines), "30 trials have ended"


@pytest.mark.parametrize(("key", "name"), [("t", "by_time"), ("l", "logarithmic"), ("?", "help")])
def test_a_key_switches_and_switches_back(key, name):
    view = View().pressed(key)
    assert getattr(view, name) and view.pressed(key) == View() and view.pressed("x") == view


def test_a_pipe_gets_a_line_for_each_trial():
    trials = trials_of(3, failed=0.0)
    row = trials.rows[1]
    line = trial_line(row, trials, is_best=True)
    assert line.startswith(f"trial 1  succeeded  loss {row.metric:.6g} (best so far)  21 s  w1.1")
    assert "\n" not in line
    (bad,) = trials_of(1, failed=1.0).rows
    assert trial_line(bad, trials, is_best=False).endswith("ValueError: the loss is <b>odd</b>")
