"""A smoothed curve follows its curve, whatever is shown of it."""

import math

import pytest

from dlctl.series import Curve, Key
from dlctl.series.smooth import smoothed

LOSS = Key("loop", 0, "", "loss")


def curve_of(points):
    curve = Curve(LOSS)
    for step, value in points:
        curve.points.point(step, 1e6 + step, value)
    return curve


def smooth(curve, begin=-math.inf, end=math.inf, factor=0.6, width=1000):
    shown = curve.view(begin, end, width)
    values = smoothed(curve, factor, (1000, 0), shown, by_time=False)
    return dict(zip(shown.step_last, values, strict=True))


def test_a_window_is_smoothed_as_the_whole_is():
    curve = curve_of((step, math.nan if step % 7 == 0 else math.sin(step)) for step in range(900))
    whole, part = smooth(curve), smooth(curve, 400, 500)
    assert all(part[step] == pytest.approx(whole[step], rel=1e-9) for step in range(400, 501))


def test_a_window_of_a_long_curve_is_smoothed_about_as_the_whole_is():
    curve = curve_of((step / 100, step / 1e5 + (step % 2)) for step in range(100_000))
    part = smooth(curve, 900, 900.5, factor=0.97)
    assert part[900.25] == pytest.approx(1.4, abs=0.05)


def test_few_points_are_not_dragged_along_by_smoothing():
    dense = curve_of((step, float(step >= 500)) for step in range(1000))
    sparse = curve_of((step, float(step >= 500)) for step in range(0, 1000, 50))
    assert smooth(sparse)[450] == pytest.approx(0.0, abs=1e-6)
    assert smooth(sparse)[500] == pytest.approx(1.0, abs=1e-6)
    assert 0.2 < smooth(dense)[500] < 0.8
