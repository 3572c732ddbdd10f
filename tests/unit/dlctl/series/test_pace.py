"""The time left follows from the pace of the newest steps."""

import pytest

from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.series.pace import JobLimit, Progress, progress, queue_waits, time_left
from dlctl.series.replays import Origin
from dlctl.series.run import Run


def run_of(times):
    run = Run("t-1")
    for step, time in times:
        run.add(Origin(1, 0, Source.LOOP), MetricsLine(step, 1, time, {"loss": 1.0}))
    return run


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ((1, 100, 0.25), (3, 200, 0.5)),  # metrics come with each step, what learners tell not
        ((1, 100, None), (3, 200, None)),
        ((None, 100, 0.25), (None, 200, 0.5)),
        ((None, None, None), (None, 200, None)),
        ((1, 100, 0.9), (3, 200, 0.999)),
        ((4, 300, 0.75), (4, 300, 0.75)),  # nothing is measured at this step
        ((9, 300, 1.0), (9, 300, 1.0)),
    ],
)
def test_what_a_learner_told_is_brought_forward_to_the_newest_metrics(told, known):
    run = Run("t-1")
    for step in range(1, 201):
        epoch = 1 + step // 100
        run.add(Origin(1, 0, Source.LOOP), MetricsLine(step, epoch, float(step), {"loss": 1.0}))
    assert progress(run, Progress(*told)) == (*known, 1.0)
    assert progress(Run("t-2"), Progress(*told)) == (*told, None)


def test_an_even_pace_has_no_interval():
    left = time_left(run_of([(s, 2.0 * s) for s in range(10, 500, 10)]), 490, 0.49)
    assert (left.low_s, left.middle_s, left.high_s) == pytest.approx((1020, 1020, 1020))


def test_a_slow_stretch_widens_the_interval():
    times, now = [], 0.0
    for step in range(1, 121):
        now += 5.0 if 60 <= step < 80 else 1.0
        times.append((step, now))
    left = time_left(run_of(times), 120, 0.5)
    assert left.middle_s == pytest.approx(120, rel=0.05)
    assert left.high_s > 400
    assert left.low_s <= 121


def test_nobody_can_tell_without_a_share_done():
    run = run_of([(s, 1.0 * s) for s in range(1, 101)])
    for step, done in ((None, 0.5), (10, None), (10, 0.0), (10, 1.0)):
        assert time_left(run, step, done) is None
    # Steps that are reported before their share count as done.
    assert time_left(run, 50, 0.5).middle_s == 0.0


def test_the_queue_between_two_attempts_does_not_count():
    run = run_of([(s, 1.0 * s) for s in range(1, 101)])
    begin = MetricsLine(100, 1, 40_100.0, event="continues", kind="begin")
    run.add(Origin(2, 0, Source.LOOP), begin)
    for step in range(101, 141):
        run.add(Origin(2, 0, Source.LOOP), MetricsLine(step, 1, 40_000.0 + step, {"loss": 1.0}))
    left = time_left(run, 140, 0.5)
    assert left.high_s == pytest.approx(140, rel=0.05)


def attempts_of(ends, begins):
    """Return a run of an attempt for each end; a step takes 10 s."""
    run = Run("t-1")
    for n, (begin, end) in enumerate(zip(begins, [*ends, None], strict=True), 1):
        loop = Origin(n, 0, Source.LOOP)
        job = Origin(n, 0, Source.JOB)
        first = (n - 1) * 100
        run.add(loop, MetricsLine(first, 1, begin, event="b", kind=EventKind.BEGIN.value))
        for i in range(1, 101):
            run.add(loop, MetricsLine(first + i, 1, begin + 10.0 * i, {"loss": 1.0}))
        if end is not None:
            at, why = end
            run.add(job, MetricsLine(first + 100, 1, at, event=why, kind=EventKind.VERDICT.value))
    return run


NEAR = "HALTED: the time limit is near"


def test_the_waits_of_earlier_attempts_are_counted_for_each_job_that_follows():
    run = attempts_of([(1000.0, NEAR), (3000.0, NEAR)], [0.0, 1600.0, 5000.0])
    assert queue_waits(run) == [600.0, 2000.0]
    left = time_left(run, 300, 0.5, JobLimit(each_s=1000.0, left_s=0.0))  # 300 steps more
    assert (left.jobs, left.queue_s) == (3, 3 * 1300.0)
    assert (left.low_s, left.middle_s, left.high_s) == pytest.approx((4800, 6900, 9000))
    assert left.text == "80 min to 2 h 30 min left, of which 65 min in the queue"
    by_a_person = attempts_of([(1000.0, "HALTED: dlctl halt asked for it")], [0.0, 90000.0])
    assert queue_waits(by_a_person) == [], "it is not the queue's"


def test_a_job_with_enough_time_left_waits_for_nothing():
    run = attempts_of([(1000.0, NEAR)], [0.0, 1600.0])
    left = time_left(run, 200, 0.8, JobLimit(1000.0, 900.0))
    assert (left.jobs, left.middle_s, left.text) == (0, 500.0, "about 8 min left")


def test_without_a_wait_seen_before_it_says_that_there_will_be_one():
    run = attempts_of([], [0.0])
    for limit, word in ((JobLimit(1000, 900), "1 more job"), (JobLimit(500, 100), "2 more jobs")):
        left = time_left(run, 100, 0.5, limit)
        assert left.text == f"about 17 min left, and the wait for {word} in the queue"
        assert left.queue_s is None
