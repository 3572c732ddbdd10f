"""One curve over all attempts, whatever is in the files."""

import json

from dlctl.outputs.metrics import merge_metrics


def points(*steps, **values):
    return [{"step": step, **values} for step in steps]


def merged(text):
    return [line.plain() for line in merge_metrics(text)]


def lines(attempt, found):
    return "\n".join([f"attempt {attempt}", *map(json.dumps, found)]) + "\n"


def test_replayed_steps_are_dropped():
    first, second = points(10, 20, 30, 40, loss=1), points(30, 40, 50, loss=2)
    assert merged(lines(1, first) + lines(2, second)) == [*first[:2], *second]


def test_attempts_are_numbers_not_words():
    text = lines(10, points(3)) + lines(2, points(2)) + lines(1, points(1))
    assert [p["step"] for p in merged(text)] == [1, 2, 3]


def test_an_attempt_that_measured_nothing_drops_nothing():
    text = lines(1, points(1, 2)) + lines(2, []) + lines(3, points(2))
    assert [p["step"] for p in merged(text)] == [1, 2]


def test_a_point_of_the_same_step_stays_within_an_attempt():
    both = [{"step": 5, "loss": 1}, {"step": 5, "accuracy": 0.5}]
    assert merged(lines(1, both)) == both


def test_an_invalid_point_is_skipped():
    text = "attempt 1\n" + '{"step": 1}\n[]\n{"step": "x"}\n{"loss": 1}\n{"step": 2, "lo'
    assert merged(text) == [{"step": 1}]
    assert merged("attempt of-something-else\n" + '{"step": 1}\n') == []
    assert merged("") == []
