"""A smoothed curve follows its curve, whatever is shown of it."""

import math

import pytest

from dlctl.series import Curve, Key
from dlctl.series.smooth import Smoother, make_smoothing

LOSS = Key("loop", 0, "", "loss")
T0 = 1_000_000.0


def test_smoothing_goes_on_where_it_stopped_and_begins_anew_after_a_replay():
    curve, smoother = Curve(LOSS), Smoother()
    how = make_smoothing(0.6, 1000, 0)
    for step in range(100):
        curve.points.point(step, T0 + step, math.sin(step))
    smoother.smoothed("a", curve, how)
    curve.points.point(100, T0 + 100, 5.0)
    once = list(smoother.smoothed("a", curve, how).points.last)
    assert once == list(Smoother().smoothed("a", curve, how).points.last)
    curve.drop_after(49)
    for step in range(50, 102):
        curve.points.point(step, T0 + 300 + step, 1.0)
    again = list(smoother.smoothed("a", curve, how).points.last)
    assert again == list(Smoother().smoothed("a", curve, how).points.last)
    assert len(again) == 102


def test_few_points_are_not_dragged_along_by_smoothing():
    sparse, dense = Curve(LOSS), Curve(LOSS)
    how = make_smoothing(0.6, 1000, 0)
    for step in range(1000):
        dense.points.point(step, T0, float(step >= 500))
        if step % 50 == 0:
            sparse.points.point(step, T0, float(step >= 500))
    smoothed = Smoother().smoothed("a", sparse, how)
    assert smoothed.points.last[9] == pytest.approx(0.0, abs=1e-6)
    assert smoothed.points.last[10] == pytest.approx(1.0, abs=1e-6)
    assert 0.2 < Smoother().smoothed("b", dense, how).points.last[500] < 0.8
