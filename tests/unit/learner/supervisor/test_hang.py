"""When learners are taken for hung, and who is named."""

import pytest

from dlctl.contract import HangPolicy, State, Status, VerdictKind
from learner.supervisor.oversight.hang import HangWatch, Stall, describe

POLICY = HangPolicy(floor_s=60, factor=10)


def learner(rank, step, *, at=0.0, beat=0.0, state=State.TRAINING, done=None):
    return Status(
        "learner", rank, 1, state, host=f"n{rank + 1}", step=step, progressed_at=at,
        heartbeat_at=beat, done=done,
    )  # fmt: skip


def look_until(watch, make, until_s, begin_s=0.0, every_s=5.0):
    """Look every 5 s; return the time of the first stall, or None."""
    now = begin_s
    while now <= until_s:
        if watch.look(now, make(now)):
            return now
        now += every_s
    return None


def test_learners_that_stop_are_hung_after_the_floor():
    watch = HangWatch(POLICY)
    steps = lambda now: [learner(r, int(min(now, 100)), beat=now) for r in (0, 1)]  # noqa: E731
    assert look_until(watch, steps, 1000) == 165


def test_slow_steps_are_no_hang():
    watch = HangWatch(POLICY)
    assert look_until(watch, lambda now: [learner(0, int(now / 50), beat=now)], 5000) is None
    assert watch.limit_s == 500


def test_a_pause_that_ended_allows_longer_ones():
    watch = HangWatch(POLICY)
    # Every 100 s of steps there are 55 s of validation by a program that does not report it.
    step = lambda now: int(now // 155 * 100 + min(now % 155, 100))  # noqa: E731
    assert look_until(watch, lambda now: [learner(0, step(now), beat=now)], 2000) is None
    assert watch.limit_s == 110


@pytest.mark.parametrize(
    "make",
    [
        lambda now: [learner(0, None, beat=now)],  # compiles, or never reports a step
        lambda now: [learner(0, 7, beat=now, at=now)],  # validates
        lambda now: [learner(0, 7, beat=now, done=1.0)],  # writes its last checkpoint
        lambda now: [learner(0, 7, beat=now, state=State.COMPLETED)],
        lambda now: [learner(0, 7, beat=1.0)],  # no heartbeat comes through
    ],
)
def test_what_is_no_hang(make):
    assert look_until(HangWatch(POLICY), make, 5000) is None


def test_a_suspended_job_does_not_hang():
    watch = HangWatch(POLICY)
    make = lambda now: [learner(0, 7, beat=now)]  # noqa: E731
    assert look_until(watch, make, 30) is None
    assert look_until(watch, make, 7215, begin_s=7200) is None


IN_EXCHANGE = """\
2026-11-24 02:00:00 on n1

== process 12: S (sleeping), waits in hrtimer_nanosleep, 3 threads: python -m learner.train /j 1
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
Current thread 0x00007f02 (most recent call first):
  File "/root/runtime/ab/learner/exchange/shm.py", line 90 in _wait
  File "/root/runtime/ab/learner/training/loop.py", line 180 in _step
  File "/root/runtime/ab/learner/train.py", line 40 in main
"""
ELSEWHERE = """\
2026-11-24 02:00:00 on n2

== process 13: S (sleeping), 3 threads: python -m learner.train /j 1
Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 700 in read
  File "/root/jobs/x/code/train.py", line 12 in stall
  File "/root/runtime/ab/learner/training/loop.py", line 180 in _step
"""


def test_who_is_not_in_the_exchange_was_waited_for():
    stall = Stall(61.0, 60.0, {0: 9, 1: 9, 2: 9})
    statuses = [learner(rank, 9) for rank in range(3)]
    stacks = {0: IN_EXCHANGE, 1: ELSEWHERE, 2: IN_EXCHANGE}
    outcome = describe(stall, statuses, stacks, "t-1", 1)
    assert (outcome.kind, outcome.state) == (VerdictKind.HUNG, State.FAILED)
    assert outcome.reason == (
        "No learner has made a step for 61 s (limit: 60 s); learner 1 on n2 was waited for, at "
        "train.py:12 in stall (the others are in the exchange)."
    )
    assert (outcome.failed_rank, "line 12 in stall" in outcome.evidence.last_lines[1]) == (1, True)


def test_the_lowest_step_tells_without_stacks():
    statuses = [learner(0, 9), learner(1, 8)]
    outcome = describe(Stall(61.0, 60.0, {}), statuses, {0: "", 1: ""}, "t-1", 1)
    assert "learner 1 on n2 was waited for (at step 8, behind the others)" in outcome.reason


def test_nobody_is_named_if_all_wait():
    statuses = [learner(0, 9), learner(1, 9)]
    outcome = describe(Stall(61.0, 60.0, {}), statuses, {0: IN_EXCHANGE, 1: IN_EXCHANGE}, "t-1", 1)
    assert "; each waits for the others." in outcome.reason
