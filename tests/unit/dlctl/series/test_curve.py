"""A window of a curve is drawn from few bins, no spike gets lost, and smoothing follows it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.contract.measured.bins import Stretch, decode
from dlctl.contract.metrics import make_line
from dlctl.series.curve import Curve, Key, smoothed

KEY = Key("loop", 0, "", "loss")


def curve_of(values):
    """Return the curve of a list of values, or of a dictionary with each one's step."""
    curve = Curve(KEY)
    for step, value in values.items() if isinstance(values, dict) else enumerate(values, 1):
        curve.points.point(step, 1e6 + step, value)
    return curve


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 4097, 20_011])
def test_a_view_holds_every_point_once(count):
    curve = curve_of(float(i) for i in range(count))
    for width in (5, 50, 700):
        shown = curve.view(0, count, width)
        assert len(shown) <= max(width, 4 * width)
        assert sum(shown.count) == count
        assert (shown.first[0], shown.last[-1]) == (0.0, count - 1.0)
        assert (min(shown.low), max(shown.high)) == (0.0, count - 1.0)
        assert list(shown.step_first) == sorted(shown.step_first)
        assert all(a < b for a, b in zip(shown.step_last, shown.step_first[1:], strict=False))


def test_every_spike_of_one_point_is_seen():
    draw, values = random.Random(5), [0.0] * 50_000
    spikes = draw.sample(range(50_000), 100)
    for place in spikes:
        values[place] = 1.0
    shown = curve_of(values).view(0, 50_000, 300)
    for place in spikes:
        hit = [h for a, b, h in zip(shown.step_first, shown.step_last, shown.high, strict=True)
               if a <= place + 1 <= b]  # fmt: skip
        assert hit == [1.0]


def test_a_zoom_shows_single_points_and_the_next_view_those_that_have_come():
    shown = curve_of(float(i) for i in range(30_000)).view(20_000, 20_050, 200)
    assert list(shown.step_last)[:3] == [19_999.0, 20_000.0, 20_001.0]
    assert set(shown.count) == {1.0}
    curve = curve_of([1.0] * 5000)
    curve.view(0, 5000, 100)
    for step in range(5001, 9001):
        curve.points.point(step, 0.0, 2.0)
    assert sum(curve.view(0, 9000, 100).count) == 9000
    curve.drop_after(100)
    assert sum(curve.view(0, 9000, 50).count) == 100


@given(st.lists(st.floats(), min_size=1, max_size=100), st.integers(1, 99))
def test_bins_hold_what_their_points_hold(values, middle):
    first, second = Stretch(), Stretch()
    for step, value in enumerate(values):
        line = make_line(step, 1, 0.0, {"loss": value})
        (first if step < middle else second).take(line, 1)
    first.join(second)
    (found,) = decode(first.encode())
    assert found == first or not all(map(math.isfinite, values))
    bin_ = found.series["", "loss"]
    assert (found.lines, bin_.count) == (len(values), len(values))
    known = [value for value in values if math.isfinite(value)]
    if not known:
        assert math.isnan(bin_.low) and math.isnan(bin_.mean)
        return
    assert (bin_.low, bin_.high, bin_.first) == (min(known), max(known), known[0])
    assert (bin_.step_first, bin_.step_last) == (values.index(known[0]), len(values) - 1)
    at = values.index(min(known)), values.index(max(known))
    assert (bin_.step_low, bin_.step_high) == at


def smooth(curve, begin=-math.inf, end=math.inf, factor=0.6, width=1000):
    shown = curve.view(begin, end, width)
    values = smoothed(curve, factor, (1000, 0), shown, by_time=False)
    return dict(zip(shown.step_last, values, strict=True))


def test_a_window_is_smoothed_as_the_whole_is():
    curve = curve_of({step: math.nan if step % 7 == 0 else math.sin(step) for step in range(900)})
    whole, part = smooth(curve), smooth(curve, 400, 500)
    assert all(part[step] == pytest.approx(whole[step], rel=1e-9) for step in range(400, 501))


def test_a_window_of_a_long_curve_is_smoothed_about_as_the_whole_is():
    curve = curve_of({step / 100: step / 1e5 + (step % 2) for step in range(100_000)})
    part = smooth(curve, 900, 900.5, factor=0.97)
    assert part[900.25] == pytest.approx(1.4, abs=0.05)


def test_few_points_are_not_dragged_along_by_smoothing():
    dense = curve_of({step: float(step >= 500) for step in range(1000)})
    sparse = curve_of({step: float(step >= 500) for step in range(0, 1000, 50)})
    assert smooth(sparse)[450] == pytest.approx(0.0, abs=1e-6)
    assert smooth(sparse)[500] == pytest.approx(1.0, abs=1e-6)
    assert 0.2 < smooth(dense)[500] < 0.8


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 64, 65, 1025, 4099])
def test_the_mean_and_the_highest_are_of_all_points(count):
    draw = random.Random(count)
    curve, values = Curve(Key("loop", 0, "", "x")), [draw.random() for _ in range(count)]
    for step, value in enumerate(values):
        curve.points.point(step, step, value)
    if not values:
        assert math.isnan(curve.mean()) and math.isnan(curve.highest())
        return
    assert curve.mean() == pytest.approx(sum(values) / count)
    assert curve.highest() == max(values)
