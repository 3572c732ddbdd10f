"""The time left follows from the pace of the newest steps."""

import pytest

from dlctl.contract.metrics import MetricsLine, Source
from dlctl.series.pace import time_left
from dlctl.series.replays import Origin
from dlctl.series.run import Run


def run_of(times):
    run = Run("t-1")
    for step, time in times:
        run.add(Origin(1, 0, Source.LOOP), MetricsLine(step, 1, time, {"loss": 1.0}))
    return run


def test_an_even_pace_has_no_interval():
    left = time_left(run_of([(s, 2.0 * s) for s in range(10, 500, 10)]), 490, 0.49)
    assert left is not None
    assert (left.low_s, left.middle_s, left.high_s) == pytest.approx((1020, 1020, 1020))


def test_a_slow_stretch_widens_the_interval():
    times, now = [], 0.0
    for step in range(1, 121):
        now += 5.0 if 60 <= step < 80 else 1.0
        times.append((step, now))
    left = time_left(run_of(times), 120, 0.5)
    assert left is not None
    assert left.middle_s == pytest.approx(120, rel=0.05)
    assert left.high_s > 400
    assert left.low_s <= 121


@pytest.mark.parametrize(("step", "done"), [(None, 0.5), (10, None), (10, 0.0), (10, 1.0)])
def test_nobody_can_tell_without_a_share_done(step, done):
    assert time_left(run_of([(s, float(s)) for s in range(20)]), step, done) is None


def test_steps_that_are_reported_before_their_share_count_as_done():
    run = run_of([(s, 1.0 * s) for s in range(1, 101)])
    left = time_left(run, 50, 0.5)
    assert left is not None
    assert left.middle_s == 0.0


def test_the_queue_between_two_attempts_does_not_count():
    run = run_of([(s, 1.0 * s) for s in range(1, 101)])
    begin = MetricsLine(100, 1, 40_100.0, event="continues", kind="begin")
    run.add(Origin(2, 0, Source.LOOP), begin)
    for step in range(101, 141):
        run.add(Origin(2, 0, Source.LOOP), MetricsLine(step, 1, 40_000.0 + step, {"loss": 1.0}))
    left = time_left(run, 140, 0.5)
    assert left is not None
    assert left.high_s == pytest.approx(140, rel=0.05)
