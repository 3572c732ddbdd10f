"""Which value of a training's metrics is the result of a trial."""

from __future__ import annotations

import pytest

from search.tasks.training import last_values, news_of


@pytest.mark.parametrize(("rows", "value"), [
    ([{"accuracy": 0.1}, {"accuracy": 0.2}], 0.2),
    ([{"accuracy": 0.9, "group": "validation"}, {"accuracy": 0.2}], 0.9),
    ([{"validation_accuracy": 0.7}, {"accuracy": 0.2}], 0.7),
    ([{"validation_accuracy": 0.7}, {"validation_accuracy": 0.8}, {"accuracy": 0.2}], 0.8),
    ([{"validation_accuracy": float("nan")}, {"accuracy": 0.2}], 0.2),
    ([{"best_validation_accuracy": 0.7}, {"accuracy": 0.2}], 0.2),
])  # fmt: skip
def test_a_value_of_validation_comes_before_one_of_training(rows, value):
    """The built-in loop writes it as `validation_accuracy`, a program may name the group."""
    assert last_values(rows, "accuracy")["accuracy"] == value


@pytest.mark.parametrize(("rows", "told", "value"), [
    ([{"accuracy": 0.1}, {"accuracy": 0.2}], 1, 0.2),
    ([{"accuracy": 0.1}, {"validation_accuracy": 0.7}], 1, 0.7),
    ([{"validation_accuracy": 0.7}, {"accuracy": 0.2, "loss": 1.0}], 1, None),
    ([{"accuracy": 0.7, "group": "validation"}, {"accuracy": 0.2}], 1, None),
    ([{"validation_accuracy": 0.7}, {"accuracy": 0.2}, {"validation_accuracy": 0.8}], 1, 0.8),
])  # fmt: skip
def test_a_report_after_a_validation_never_tells_a_value_of_training(rows, told, value):
    """A strategy that ends trials early compares them, and must compare the same thing."""
    found = news_of(rows, told, "accuracy")
    assert found.get("accuracy") == value
    assert found.get("loss") == next((row["loss"] for row in rows[told:] if "loss" in row), None)
