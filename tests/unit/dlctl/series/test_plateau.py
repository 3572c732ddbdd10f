"""A plateau is found in time, and not where a curve still gets better."""

from __future__ import annotations

import random

import pytest
from made_curves import made_curves

from dlctl.series.plateau import LEAST, find_plateau
from dlctl.series.trend import slope, thinned, trend


def test_precision_and_recall_on_curves_of_which_the_answer_is_known():
    found = [(find_plateau(m.points, m.lower), m) for m in made_curves(400)]
    right = sum(p is not None and m.flat_from is not None for p, m in found)
    wrong = sum(p is not None and m.flat_from is None for p, m in found)
    missed = sum(p is None and m.flat_from is not None for p, m in found)
    assert right / (right + wrong) > 0.95, (right, wrong)
    assert right / (right + missed) > 0.95, (right, missed)


def test_a_plateau_begins_where_the_curve_bends():
    points = [(step, max(1.0, 5 - step * 0.1)) for step in range(100)]
    plateau = find_plateau(points, lower_is_better=True)
    assert plateau is not None
    assert 38 <= plateau.since_step <= 42


def test_a_curve_that_gets_worse_is_on_a_plateau():
    assert find_plateau([(i, float(i)) for i in range(30)], lower_is_better=True) is not None
    assert find_plateau([(i, float(i)) for i in range(30)], lower_is_better=False) is None


def test_a_change_of_the_learning_rate_begins_anew():
    flat = [(i, 1.0) for i in range(40)]
    assert find_plateau(flat, True, since_step=39 - LEAST) is not None
    assert find_plateau(flat, True, since_step=40 - LEAST) is None


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * (LEAST - 1)])
def test_few_values_tell_nothing(values):
    assert find_plateau(list(enumerate(values)), True) is None


def test_the_trend_of_noise_is_none_and_of_a_rise_is_sure():
    draw = random.Random(4)
    noise = [draw.gauss(0, 1) for _ in range(60)]
    assert abs(trend(noise)) < 1.64
    assert trend([v + i / 5 for i, v in enumerate(noise)]) > 3
    assert trend([2.0] * 50) == 0.0
    assert slope([(i, 3.0 * i + (100 if i == 7 else 0)) for i in range(20)]) == pytest.approx(3.0)


def test_thinning_keeps_the_ends_and_the_order():
    some = thinned([(float(i), 0.0) for i in range(10_001)])
    steps = [step for step, _ in some]
    assert (len(steps), steps[0], steps[-1]) == (120, 0.0, 10_000.0)
    assert steps == sorted(set(steps))
