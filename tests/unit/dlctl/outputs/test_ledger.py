"""The ledger, with numbers that can be checked by hand."""

from dataclasses import replace

import pytest
from login_side import plan_of

from dlctl.contract import State, Status, Verdict
from dlctl.contract.metrics import MetricsLine
from dlctl.lifecycle.accounts import AttemptAccount
from dlctl.outputs.ledger import USES, Prices, advise, ledger, summed
from dlctl.scheduler.base import Usage
from dlctl.scheduler.slurm import Slurm
from dlctl.series.utilisation import Use, sentences

TEXT = """\
name: x
nodes: 2
learners_per_node: 2
gpus: 1
cpus: 2
memory: 8GiB
framework: {name: pytorch, job: train.py}
training: {log_every_steps: 10}
"""
PLAN = plan_of(TEXT)
BEGIN = 1000.0


def status(role="supervisor", started_at=BEGIN + 5, heartbeat_at=0.0, state=State.TRAINING):
    return Status(role, 0, 1, state, started_at=started_at, heartbeat_at=heartbeat_at)


def line(step, time, **values):
    return MetricsLine(step, 1, time, values)


STEPS = {"step_s": 2.0, "exchange_s": 0.5, "data_wait_s": 0.2, "checkpoint_stall_s": 0.1}
# Two nodes: 100 s of starting, 20 steps of 2 s, 10 s of validation, then 50 s without any step.
FIRST = AttemptAccount(
    1, PLAN, "7", 400.0, status(), None,
    Verdict(1, "7", State.HALTED, "halted", finished_at=BEGIN + 195, progress=20, step=20),
    [line(10, BEGIN + 120, **STEPS, memory_bytes=2**30),
     MetricsLine(10, 1, BEGIN + 121, event="order 1"),
     line(20, BEGIN + 150, **STEPS, validation_loss=1.0)],
    Usage(400.0, BEGIN, BEGIN + 200, 1600.0, 3 * 2**30),
)  # fmt: skip


def hours(node_seconds):
    return pytest.approx(node_seconds / 3600)


def test_the_uses_of_an_attempt_add_up_to_the_hours_held():
    found = ledger("x-1", [FIRST], Prices(1.2, 2.5, "EUR"), 0.0)
    uses = found.node_hours_by_use
    assert uses["starting"] == hours(2 * 100)
    assert uses["exchange"] == hours(2 * 20 * 0.5)
    assert uses["data"] == hours(2 * 20 * 0.2)
    assert uses["saving"] == hours(2 * 20 * 0.1)
    assert uses["useful"] == hours(2 * (20 * 1.2 + 10))
    assert uses["idle"] == hours(2 * 50)
    assert uses["again"] == 0
    assert found.node_hours == hours(2 * 200) and found.gpu_hours == hours(4 * 200)
    assert sum(found.gpu_hours_by_use.values()) == pytest.approx(found.gpu_hours)
    assert found.queued_h == pytest.approx(600 / 3600)
    assert found.cost == pytest.approx(1.2 * 400 / 3600 + 2.5 * 800 / 3600)
    assert (found.memory_asked_bytes, found.memory_used_bytes) == (8 * 2**30, 3 * 2**30)
    # Without measurements of a node the accounting tells, and of one learner, as the manifest asks.
    assert (found.cpus_asked, found.cpus_used) == (2, pytest.approx(2.0))
    assert found.cpu_hours == hours(8 * 200) and found.gpu_energy_kwh is None


def test_what_was_measured_counts_before_the_accounting():
    """`report` and `show --all` disagreed on the CPUs and on the peak of memory."""
    use = Use(cpus=0.24, memory_bytes=2.0**31, gpu_power_w=300.0, step_shares={"exchange": 0.52})
    found = ledger("x-1", [FIRST], None, 0.0, use)
    assert (found.cpus_used, found.memory_used_bytes, found.step_shares) == (
        0.24, 2**31, {"exchange": 0.52})  # fmt: skip
    assert found.utilisation == sentences(use, PLAN.resources)
    assert found.gpu_energy_kwh == pytest.approx(0.3 * 800 / 3600)


def test_sums_over_trainings():
    one, other = (ledger(name, [FIRST], Prices(1.0, 0.0, currency), 0.0)
                  for name, currency in (("x-1", "EUR"), ("x-2", "USD")))  # fmt: skip
    found = summed("rates", [one, one])
    assert (found.trainings, found.node_hours) == (2, hours(2 * 2 * 200))
    assert found.useful_share == pytest.approx(34 / 200)
    assert (found.cost, found.currency) == (pytest.approx(800 / 3600), "EUR")
    assert (summed("all", [one, other]).cost, summed("none", []).useful_share) == (None, None)


def test_what_a_fault_lost_is_done_again():
    """It failed 5 steps after its checkpoint; the next attempt begins at 15 again."""
    lost = replace(
        FIRST, verdict=replace(FIRST.verdict, state=State.FAILED, progress=15, step=20),
    )  # fmt: skip
    second = AttemptAccount(
        2, PLAN, "8", BEGIN + 200, status(started_at=BEGIN + 300), None,
        Verdict(2, "8", State.COMPLETED, "done", finished_at=BEGIN + 340, progress=25),
        [line(20, BEGIN + 320, step_s=2.0), line(25, BEGIN + 330, step_s=2.0)],
    )  # fmt: skip
    found = ledger("x-1", [lost, second], None, 0.0)
    uses = found.node_hours_by_use
    assert uses["again"] == hours(2 * 5 * 2)
    assert uses["starting"] == hours(2 * (100 + 10))
    assert uses["useful"] == hours(2 * (15 * 1.2 + 10 + 10 * 2))
    assert found.node_hours == hours(2 * (200 + 40))
    assert found.queued_h == pytest.approx(700 / 3600)
    assert found.cost is None
    halted = replace(FIRST, verdict=replace(FIRST.verdict, progress=15))
    again = ledger("x-1", [halted], Prices(), 0.0).node_hours_by_use["again"]
    assert again == hours(2 * 5 * 2), "steps after the last save of a halt"


def test_attempts_in_one_job_hold_it_once():
    """The second attempt runs in the first one's job: no second queue, and no gap between them."""
    killed = replace(FIRST, verdict=replace(FIRST.verdict, state=State.FAILED, progress=20))
    second = replace(
        FIRST, attempt=2, supervisor=status(started_at=BEGIN + 199), lines=[],
        verdict=replace(FIRST.verdict, attempt=2, finished_at=BEGIN + 400),
        usage=FIRST.usage._replace(ended_at=BEGIN + 410),
    )  # fmt: skip
    first = replace(killed, usage=second.usage)
    found = ledger("x-1", [first, second], None, 0.0)
    assert [spent.held_s for spent in found.each] == [195.0, 215.0]
    assert found.node_hours == hours(2 * 410)
    assert found.queued_h == pytest.approx(600 / 3600)


@pytest.mark.parametrize("late", [-30.0, 0.0, 3000.0])
def test_whatever_the_clocks_say_the_uses_are_the_hours(late):
    lines = [replace(each, time=(each.time or 0) + late) for each in FIRST.lines]
    found = ledger("x-1", [replace(FIRST, lines=lines)], None, 0.0)
    assert sum(found.node_hours_by_use.values()) == pytest.approx(found.node_hours)
    assert all(found.node_hours_by_use[use] >= 0 for use in USES)


def test_a_program_of_ones_own_and_one_that_still_runs():
    plan = plan_of("name: x\nframework: {name: any, command: ./train}\n")
    learner = status("learner", BEGIN + 15, BEGIN + 90)
    runs = AttemptAccount(1, plan, "3", 990.0, status(), learner)
    found = ledger("x-1", [runs], None, BEGIN + 105)
    assert found.each[0].uses["starting"] == 10 and found.each[0].uses["useful"] == 90
    assert found.each[0].queued_s == 15
    failed = Verdict(1, "3", State.FAILED, "bad", finished_at=BEGIN + 105, used_s=60.0)
    ended = replace(runs, verdict=failed, learner=replace(learner, state=State.FAILED))
    uses = ledger("x-1", [ended], None, 0.0).each[0].uses
    assert (uses["again"], uses["useful"], uses["idle"]) == (25, 50, 15)
    assert ledger("x-1", [], None, 0.0).node_hours == 0


def test_the_advice_names_what_would_have_saved_most():
    none = dict.fromkeys(USES, 0.0) | {"useful": 10.0}
    gib = 2**30
    assert "`checkpoint:" in advise(none | {"again": 2.0, "data": 0.5}, 0, 12, 0, None, None)
    own = advise(none | {"again": 2.0}, 0, 12, 0, None, None, has_loop=False)
    assert own.startswith("a program that saves twice as often would have saved")
    never = dict.fromkeys(USES, 0.0) | {"again": 2.0}
    own = advise(never, 0, 12, 0, None, None, has_loop=False)
    assert own.startswith("a program that saves what it has reached") and "was lost to" in own
    starts = none | {"starting": 2.0}
    assert advise(starts, 0, 12, 0.5, None, None).startswith("a longer `time` per job would have")
    assert "time" not in advise(starts, 0, 12, 0, None, None).partition("would")[0]
    said = advise(none | {"data": 3.0}, 0, 13, 0, None, None)
    assert said.startswith("more `cpus`") and "about 3 h of a node: 23 %" in said
    assert advise(none, 0, 10, 0, 8 * gib, 2 * gib).startswith("`memory: 2560MiB`")
    assert advise(none, 0, 10, 0, gib, gib // 2 - 1).startswith("`memory: 768MiB`")
    assert "memory" not in advise(none, 0, 10, 0, gib // 4, gib // 9)
    assert "it waited longest" in advise(none, 20, 10, 0, None, None)
    assert advise(none, 1, 10, 0, None, None) == "no change would have saved more than 2 %"


SACCT = """\
Welcome to the cluster
7\x1f1700000000\x1f1700000600\x1f1700000800\x1f26:40\x1f
7.batch\x1f1700000600\x1f1700000600\x1f1700000800\x1f00:01.500\x1f3145728K
7.0\x1f1700000600\x1f1700000600\x1f1700000800\x1f26:38\x1f1G
8\x1f1700000900\x1fUnknown\x1fUnknown\x1f00:00:00\x1f
9\x1f1700000900\x1f1700000901\x1fUnknown\x1f1-02:00:00\x1f
"""


def test_what_sacct_prints_of_jobs_and_steps():
    found = Slurm().parse_usage(SACCT)
    assert found["7"] == Usage(1700000000, 1700000600, 1700000800, 1600.0, 3 * 2**30)
    assert found["8"] == Usage(1700000900, None, None, 0.0, None)
    assert found["9"].cpu_s == 26 * 3600 and found["9"].ended_at is None
    script = Slurm().usage_script(["7", "8"])
    assert "SLURM_TIME_FORMAT=%s" in script and "--jobs=7,8" in script
    assert "--allocations" not in script
    assert Slurm(accounting=False).usage_script(["7"]) is None


def test_both_runs_of_a_job_that_slurm_ran_again_are_counted():
    """Accounting knows the last run only."""
    last = Usage(900.0, 2000.0, 2500.0)
    runs = [
        AttemptAccount(
            attempt, PLAN, "7", 900.0, status(started_at=begin), None,
            Verdict(attempt, "7", State.HALTED, "", finished_at=end, progress=0), [], last,
        ) for attempt, begin, end in ((1, 1000.0, 1500.0), (2, 2001.0, 2500.0))
    ]  # fmt: skip
    found = ledger("x-1", runs, Prices(), 0.0)
    assert found.node_hours == hours(2 * (500 + 500))
    assert found.queued_h == hours(100 + 500)


def test_a_retry_that_waits_in_its_job_is_idle_and_not_starting():
    second = replace(
        FIRST, attempt=2, supervisor=status(started_at=BEGIN + 260),
        verdict=replace(FIRST.verdict, attempt=2, finished_at=BEGIN + 400),
        lines=[line(30, BEGIN + 300, **STEPS)], usage=FIRST.usage._replace(ended_at=BEGIN + 400),
    )  # fmt: skip
    first = replace(FIRST, usage=FIRST.usage._replace(ended_at=BEGIN + 400))
    uses = ledger("x-1", [first, second], Prices(), 0.0).node_hours_by_use
    assert uses["starting"] == hours(2 * (100 + 20))
