"""A plateau is found in time, and not where a curve still gets better."""

import random

import pytest
from made_curves import answered, told

from dlctl.contract.measured.plateau import LEAST, find_plateau
from dlctl.contract.measured.rates import Rates, rate_changes
from dlctl.contract.measured.trend import slope, thinned, trend


def test_precision_and_recall_on_curves_of_which_the_answer_is_known():
    figures = answered()
    assert figures.precision > 0.95 and figures.recall > 0.95, figures


def test_who_looks_after_each_value_is_not_misled():
    figures = told(100)
    assert figures.precision > 0.97 and figures.recall > 0.9, figures


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
