"""Columns, axes and smoothing."""

import json

import pytest
from login_side import make_record
from synthetic_feed import T0, details, resumed, spiked, training

from dlctl.contract import State
from dlctl.contract.metrics import MetricsLine, Source
from dlctl.dashboard.curves import Wanted, curves
from dlctl.dashboard.feed import row
from dlctl.series import Key, Run
from dlctl.series.pace import JobLimit
from dlctl.series.replays import Origin

LOSS = Key("loop", 0, "", "loss")


def of(found, name, group=""):
    return next(c for c in found["curves"] if c["name"] == name and c["group"] == group)


def test_every_spike_of_one_point_is_in_the_columns():
    places = range(5_000, 100_000, 950)
    found = curves(spiked("a", 100_000, places), Wanted(width=800))
    (curve,) = found["curves"]
    high = [x for x, value in zip(curve["x"], curve["high"], strict=True) if value == 1.0]
    assert len(high) == len(places)


@pytest.mark.parametrize("kind", ["step", "epoch", "time"])
def test_utilisation_lies_where_the_training_was(kind):
    found = curves(resumed("a", 1000), Wanted(kind, width=5000))
    for curve in found["curves"]:
        assert curve["x"] == sorted(curve["x"])
        assert found["span"][0] <= curve["x"][0] and curve["x"][-1] <= found["span"][1] + 1e-6


def test_time_counts_from_the_beginning_of_the_first_attempt():
    found = curves(resumed("a", 1000), Wanted("time"))
    assert found["start"] == T0
    first, second = found["attempts"]
    assert (first["begin"], first["end"], second["begin"]) == (0.0, 224.0, 320.0)


@pytest.mark.parametrize(("kind", "place"), [("step", 20), ("time", 29.0)])
def test_the_end_of_an_attempt_is_drawn_where_the_next_one_goes_on(kind, place):
    """An attempt that reached step 29 was lost; by steps, 21 to 29 are the next attempt's."""
    run = Run("a")
    for attempt, begin in ((1, 0), (2, 20)):
        origin = Origin(attempt, 0, Source.LOOP)
        run.add(origin, MetricsLine(begin, None, T0 + begin, event="begin", kind="begin"))
        for step in range(begin + 1, 30):
            run.add(origin, MetricsLine(step, None, T0 + step, {"loss": 1.0}))
        if attempt == 1:
            lost = "FAILED: node n7 was lost"
            run.add(Origin(1, 0, Source.JOB),
                    MetricsLine(29, None, T0 + 29, event=lost, kind="verdict"))  # fmt: skip
    (end,) = (e for e in curves(run, Wanted(kind))["events"] if e["kind"] == "verdict")
    assert (end["x"], end["step"]) == (place, 29)


def test_numbers_that_json_lacks_become_null():
    run = Run("a")
    for step, value in enumerate([1.0, None, 2.0]):
        run.add(Origin(1, 0, Source.LOOP), MetricsLine(step, None, T0, {"loss": value}))
    found = curves(run, Wanted(smooth=0.5))
    json.dumps(found, allow_nan=False)
    assert of(found, "loss")["last"] == [1.0, None, 2.0]
    assert of(found, "loss")["smooth"][0] == 1.0


def test_a_window_by_epoch_holds_the_steps_of_these_epochs():
    found = curves(training("a", 1000), Wanted("epoch", 1.0, 2.0, 5000))
    x = of(found, "loss")["x"]
    assert 0.9 < x[0] <= 1.0 and 2.0 <= x[-1] < 2.1


def test_smoothing_does_not_depend_on_the_window():
    run = training("a", 1000, seed=2)
    whole = curves(run, Wanted(width=5000, smooth=0.9))
    part = curves(run, Wanted(begin=500, end=600, width=5000, smooth=0.9))
    by_step = dict(zip(of(whole, "loss")["x"], of(whole, "loss")["smooth"], strict=True))
    for x, value in zip(of(part, "loss")["x"], of(part, "loss")["smooth"], strict=True):
        assert by_step[x] == value


def test_a_row_of_a_training_without_metrics():
    record = make_record(state=State.PENDING, created_at="2026-01-01T10:00:00+00:00")
    found = row(record, None)
    assert (found["spark"], found["left_s"], found["gpu"]) == ([], None, None)
    assert found["created_at"] == 1767261600
    assert details()["plan"]


def test_a_row_has_the_value_of_the_curve_that_it_names_of_the_first_learner():
    record = make_record(state=State.TRAINING, loss=7.0)
    run = Run("a")
    values = {"a": 2.0, "accuracy": 0.9}
    run.add(Origin(1, 0, Source.LOG), MetricsLine(1, None, T0, values, group="test"))
    found = row(record, run)
    assert (found["spark_name"], found["spark_last"]) == ("test accuracy", 0.9)
    for learner, steps in ((0, 3), (1, 5)):
        for step in range(1, steps):
            origin = Origin(1, learner, Source.LOG)
            run.add(origin, MetricsLine(step, None, T0, {"loss": 1.0 + learner}, group="train"))
    found = row(record, run)
    assert (found["spark_name"], found["spark_last"]) == ("train loss", 1.0)


def test_the_time_left_counts_the_jobs_that_still_have_to_wait():
    record = make_record(state=State.TRAINING, step=100, done=0.5)
    run = Run("a")
    for attempt, begin, first in ((1, 0.0, 0), (2, 1000.0, 50)):
        origin = Origin(attempt, 0, Source.LOOP)
        run.add(origin, MetricsLine(first, 1, begin, event="begins", kind="begin"))
        for step in range(first + 1, first + 51):
            run.add(origin, MetricsLine(step, 1, begin + step - first, {"loss": 1.0}))
        if attempt == 1:
            ended = MetricsLine(50, 1, 50.0, event="HALTED: time limit", kind="verdict")
            run.add(Origin(1, 0, Source.NODE), ended)
    assert row(record, run)["left_s"] == [100.0, 100.0, 100.0]
    assert row(record, run, JobLimit(50.0, 0.0))["left_s"] == [2000.0, 2000.0, 2000.0]


def test_only_so_many_curves_are_sent_and_the_rest_is_found_by_name():
    run = Run("a")
    names = {f"layer{n}/weight": 1.0 for n in range(1000)}
    run.add(Origin(1, 0, Source.PROGRAM), MetricsLine(1, None, T0, names))
    found = curves(run, Wanted())
    assert found["total"] == 1000 and len(found["curves"]) == 240
    found = curves(run, Wanted(find="layer777"))
    assert [curve["name"] for curve in found["curves"]] == ["layer777/weight"]
    found = curves(run, Wanted("epoch"))
    assert found["curves"] == [] and "no epochs" in found["problem"]
    assert curves(run, Wanted("step"))["problem"] == ""
