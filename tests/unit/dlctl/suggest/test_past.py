"""What an attempt has used, with numbers that can be checked by hand."""

from dataclasses import replace

import pytest
from login_side import make_record, plan_of

from dlctl.contract import State, Status, Verdict
from dlctl.contract.metrics import MetricsLine
from dlctl.lifecycle.accounts import AttemptAccount
from dlctl.record import RecordStore
from dlctl.scheduler.base import Usage
from dlctl.suggest import history
from dlctl.suggest.past import pasts, quantile

TEXT = """\
name: digits
nodes: 1
learners_per_node: 2
gpus: 2
cpus: 4
memory: 8GiB
framework: {name: pytorch, job: train.py}
training: {epochs: 2, batch_size: 64}
"""
BEGIN, MIB = 1000.0, 2**20


def line(step, time, epoch=1, **values):
    return MetricsLine(step, epoch, time, values)


def event(step, kind, seconds):
    return MetricsLine(step, 1, BEGIN, {"seconds": seconds}, event="it", kind=kind)


ATTEMPT = AttemptAccount(
    1, plan_of(TEXT), "7", BEGIN - 60, Status("supervisor", 0, 1, State.TRAINING, started_at=BEGIN),
    None, Verdict(1, "7", State.COMPLETED, "done", finished_at=BEGIN + 100, step=20),
    [line(10, BEGIN + 40, step_s=2.0, exchange_s=0.5, memory_bytes=300 * MIB),
     event(10, "checkpoint", 3.0), event(10, "validation", 4.0),
     line(20, BEGIN + 80, 2, step_s=4.0, exchange_s=1.0, memory_bytes=400 * MIB)],
    Usage(BEGIN - 60, BEGIN, BEGIN + 100, 400.0, 350 * MIB),
    [line(-1, BEGIN + 10, cpu_percent=150.0, memory_rss_bytes_max=500 * MIB, gpu0_percent=90.0,
          gpu1_percent=1.0),
     line(-1, BEGIN + 20, cpu_percent=250.0, cgroup_memory_bytes_max=1400 * MIB, gpu0_percent=0.0,
          gpu1_percent=3.0)],
)  # fmt: skip


def test_what_an_attempt_has_used():
    (past,) = pasts("digits-1", [ATTEMPT], 0.0)
    assert (past.learners, past.gpus, past.cpus) == (2, 2, 4)
    assert past.memory_bytes == 700 * MIB, "half of what the kernel counts of both learners"
    assert past.cpus_used == pytest.approx(2.45)
    assert past.gpus_used == 1, "the other was 2 % busy in the mean"
    assert past.step_s == pytest.approx(3.9) and past.exchange_share == 0.25
    assert (past.steps, past.epoch_samples) == (20, 640)
    assert (past.save_s, past.validation_s) == (3.0, 4.0)
    assert (past.queued_s, past.held_s, past.start_s, past.store_s) == (60, 100, 20, 20)
    assert past.is_over and past.is_telling


def test_accounting_alone_tells_memory_and_the_mean_of_the_cpus():
    (past,) = pasts("digits-1", [replace(ATTEMPT, lines=[], beside=[])], 0.0)
    assert past.memory_bytes == 350 * MIB and past.cpus_used == 2.0
    assert past.gpus_used is None and past.step_s is None and past.epoch_samples is None


def test_what_broke_off_tells_no_epoch_and_one_that_runs_is_not_over():
    runs = replace(ATTEMPT, verdict=None, usage=Usage())
    (past,) = pasts("digits-1", [runs], BEGIN + 90)
    assert past.epoch_samples is None and not past.is_over and past.memory_bytes == 700 * MIB
    assert pasts("digits-1", [replace(runs, supervisor=None)], 0.0) == []


def test_a_quantile_lies_between_the_nearest_two():
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.95) == 9.5


def test_the_history_keeps_the_newest_and_knows_what_is_left_to_ask(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_MOST", 3)
    store = RecordStore(tmp_path / "trainings.db")
    assert history.known(store) == []
    for number in range(5):
        history.keep(store, pasts(f"t-{number}", [ATTEMPT], 0.0))
    running = pasts("t-5", [replace(ATTEMPT, verdict=None, usage=Usage())], BEGIN + 90)
    history.keep(store, running)
    known = history.known(store)
    assert [past.training_id for past in known] == ["t-3", "t-4", "t-5"]
    records = [make_record(training_id=f"t-{n}", job_id="7") for n in range(3, 7)]
    records.append(make_record(training_id="t-9"))  # it has no job yet
    left = [record.training_id for record in history.unread(records, known)]
    assert left == ["t-5", "t-6"], "that which ran when it was read, and the one nobody has read"
    again = replace(records[0], attempt=2)
    assert history.unread([again], known) == [again]


def test_a_history_that_nobody_understands_is_none(tmp_path):
    store = RecordStore(tmp_path / "trainings.db")
    history.keep(store, pasts("t-1", [ATTEMPT], 0.0))
    store.change(lambda connection: connection.execute(
        "INSERT INTO used VALUES ('t-2.1', '', '', 'x'), ('t-3.1', '', '', '{}')"))  # fmt: skip
    assert [past.training_id for past in history.known(store)] == ["t-1"]
    store.path.write_bytes(b"no database")
    assert history.known(store) == []


def test_the_record_alone_tells_how_long_a_training_ran(tmp_path):
    store = RecordStore(tmp_path / "trainings.db")
    ended = make_record(name="digits", job_id="1", state=State.COMPLETED, started_at=100.0,
                        ended_at=160.0, epochs=2)  # fmt: skip
    store.add(
        ended, replace(ended, training_id="t-2", attempt=2), replace(ended, training_id="t-3"),
        replace(ended, training_id="t-4", state=State.FAILED),
        replace(ended, training_id="t-5", name="other"),
    )  # fmt: skip
    history.keep(store, [*pasts("t-3", [ATTEMPT], 0.0),
                         *pasts("t-6", [replace(ATTEMPT, plan=OTHER)], 0.0)])  # fmt: skip
    read, past = history.known_here(store, [ATTEMPT.plan])
    assert (read.training_id, read.memory_bytes) == ("t-3", 700 * MIB)
    assert (past.training_id, past.held_s, past.epochs) == ("t-1", 60.0, 2)


OTHER = replace(ATTEMPT.plan, name="other", code_digest="another")
