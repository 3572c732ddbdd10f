"""A plateau is found in time, and not where a curve still gets better."""

import random

import pytest
from made_curves import told

from dlctl.contract.measured.rates import Rates, rate_changes
from dlctl.contract.measured.trend import slope, trend
from learner.supervisor.oversight.standstill import LEAST, find_plateau


def test_who_looks_after_each_value_is_not_misled():
    figures = told(100)
    assert figures.precision > 0.97 and figures.recall > 0.9, figures


def test_a_plateau_begins_where_the_curve_bends():
    plateau = find_plateau([(step, min(4.0, step * 0.1)) for step in range(100)], 4.0)
    assert plateau is not None
    assert 38 <= plateau.since_step <= 42


def test_a_curve_that_gets_worse_is_on_a_plateau():
    assert find_plateau([(i, -float(i)) for i in range(30)], 0.0) is not None
    assert find_plateau([(i, float(i)) for i in range(30)], 29.0) is None


def test_few_values_tell_nothing():
    flat = [(i, 1.0) for i in range(LEAST)]
    assert find_plateau(flat, 1.0) is not None and find_plateau(flat[1:], 1.0) is None


def test_the_trend_of_noise_is_none_and_of_a_rise_is_sure():
    draw = random.Random(4)
    noise = [draw.gauss(0, 1) for _ in range(60)]
    assert abs(trend(noise)) < 1.64
    assert trend([v + i / 5 for i, v in enumerate(noise)]) > 3
    assert trend([2.0] * 50) == 0.0
    assert slope([(i, 3.0 * i + (100 if i == 7 else 0)) for i in range(20)]) == pytest.approx(3.0)


def test_the_rate_is_changed_by_steps_and_not_by_a_schedule():
    stepped = [(i, 0.1 if i < 50 else 0.01) for i in range(100)]
    assert [(c.step, c.before, c.after) for c in rate_changes(stepped)] == [(49, 0.1, 0.01)]
    assert rate_changes([(i, 0.1 / (1 + i)) for i in range(100)]) == []


def test_what_is_done_again_changes_no_rate_twice():
    rates = Rates()
    for step in range(60):
        rates.add(step, 0.1 if step < 50 else 0.01)
    rates.drop_after(40)
    for step in range(41, 100):
        rates.add(step, 0.1 if step < 70 else 0.01)
    assert [change.step for change in rates.changes()] == [69]
