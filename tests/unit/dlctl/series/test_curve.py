"""A window of a curve is drawn from few bins, and no spike gets lost."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.contract.measured.pyramid import LEVELS, Bin, Builder, decode, point
from dlctl.series.curve import Curve, Key

KEY = Key("loop", 0, "", "loss")


def curve_of(values):
    curve = Curve(KEY)
    for step, value in enumerate(values, 1):
        curve.points.point(step, 1000.0 + step, value)
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


def test_a_zoom_shows_single_points():
    shown = curve_of(float(i) for i in range(30_000)).view(20_000, 20_050, 200)
    assert list(shown.step_last)[:3] == [19_999.0, 20_000.0, 20_001.0]
    assert set(shown.count) == {1.0}


def test_points_that_come_after_a_view_are_in_the_next():
    curve = curve_of([1.0] * 5000)
    curve.view(0, 5000, 100)
    for step in range(5001, 9001):
        curve.points.point(step, 0.0, 2.0)
    assert sum(curve.view(0, 9000, 100).count) == 9000
    curve.drop_after(100)
    assert sum(curve.view(0, 9000, 50).count) == 100


@given(st.lists(st.floats(), min_size=1, max_size=300))
def test_bins_hold_what_their_points_hold(values):
    full: dict[int, list[Bin]] = {}
    builder = Builder(lambda level, found: full.setdefault(level, []).append(found))
    for step, value in enumerate(values):
        builder.add_bin(0, point(0, step, math.nan, value))
    for k in LEVELS:
        bins = full.get(k, [])
        assert [b.count for b in bins] == [1 << k] * (len(values) >> k)
        again = list(decode(b"".join(b.encode() for b in bins)))
        for i, found in enumerate(again):
            part = values[i << k : (i + 1) << k]
            known = [v for v in part if not math.isnan(v)]
            if known:
                assert (found.low, found.high) == (min(known), max(known))
                at = (i << k) + part.index(min(known)), (i << k) + part.index(max(known))
                assert (found.step_low, found.step_high) == at
            else:
                assert math.isnan(found.low)
            assert (found.step_first, found.step_last) == (i << k, ((i + 1) << k) - 1)
