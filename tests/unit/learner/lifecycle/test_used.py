"""What an attempt has used, as its verdict says it: with numbers that can be checked by hand."""

import json
import os
from dataclasses import replace

import pytest
from login_side import plan_of

from dlctl import contract
from dlctl.contract import Rehearsal, State, Status, Verdict, VerdictKind
from dlctl.contract.measured.past import LearnerUse
from learner.lifecycle import history as used
from learner.lifecycle.manager import conclude

TEXT = """\
name: digits
nodes: 2
learners_per_node: 2
gpus: 2
cpus: 4
memory: 8GiB
framework: {name: pytorch, job: train.py}
training: {epochs: 2, batch_size: 64}
"""
BEGIN, MIB = 1000.0, 2**20
DONE = Verdict(1, "7", State.COMPLETED, "done", finished_at=BEGIN + 100)


class Job:
    """A job directory with what four learners on two nodes have written."""

    def __init__(self, folder):
        self.dir, self.plan = folder, plan_of(TEXT)
        (folder / "metrics").mkdir()
        self.began(1)
        self.write([
            {"step": 10, "epoch": 1, "time": BEGIN + 40, "step_s": 2.0, "exchange_s": 0.5,
             "memory_bytes": 300 * MIB},
            {"step": 10, "epoch": 1, "time": BEGIN + 41, "event": "it", "kind": "checkpoint",
             "seconds": 3.0},
            {"step": 20, "epoch": 2, "time": BEGIN + 80, "step_s": 4.0, "exchange_s": 1.0},
        ])  # fmt: skip

    def began(self, attempt):
        (self.dir / contract.attempt_dir(attempt)).mkdir(parents=True)
        receipt = self.dir / contract.submit_begin(attempt)
        receipt.touch()
        os.utime(receipt, (BEGIN - 60,) * 2)
        self.tell(Status("supervisor", 0, attempt, State.TRAINING, started_at=BEGIN,
                         heartbeat_at=BEGIN + 98), attempt)  # fmt: skip

    def tell(self, status, attempt=1):
        path = self.dir / contract.status_file(attempt, status.role, status.rank)
        contract.write_whole(path, contract.to_json(status))

    def write(self, lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.dir / contract.metrics_file(1, 0)).write_text(text)

    def use(self, rank, **values):
        path = self.dir / contract.use_file(1, rank)
        contract.write_whole(path, contract.to_json(LearnerUse(**values)))

    def past(self, verdict=DONE):
        verdict, _ = conclude(self.dir, self.plan, verdict, None)
        return verdict.pasts[-1]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_what_an_attempt_has_used(job):
    job.use(0, memory_bytes=500 * MIB, cpu_tenths={"15": 1}, gpu_percent={"0": 90.0, "1": 1.0})
    job.use(1, memory_bytes=400 * MIB, cpu_tenths={"5": 94, "25": 6})
    past = job.past()
    assert (past.training_id, past.attempt, past.job_id) == (job.plan.training_id, 1, "7")
    assert (past.learners, past.nodes, past.gpus, past.cpus) == (4, 2, 2, 4)
    assert past.memory_bytes == 500 * MIB and past.memory_asked_bytes == 8192 * MIB
    assert past.cpus_used == 2.5, "that of the busiest learner"
    assert past.gpus_used == 1, "the other was 1 % busy in the mean"
    job.use(1, gpu_percent={"0": 90.0, "1": 1.0}, gpu_memory_share={"1": 0.6})
    assert job.past().gpus_used == 2, "it held what the first needs"
    assert past.step_s == pytest.approx(3.9) and past.exchange_share == 0.25
    assert (past.steps, past.epoch_samples, past.save_s) == (20, 640, 3.0)
    assert (past.queued_s, past.held_s, past.start_s, past.store_s) == (60, 100, 38, 20)
    assert past.is_telling and not past.is_rehearsal


def test_the_peak_may_be_that_of_any_learner_on_any_node(job):
    job.use(0, memory_bytes=500 * MIB, job_memory_bytes=1200 * MIB)
    job.use(2, memory_bytes=700 * MIB, job_memory_bytes=1200 * MIB)
    assert job.past().memory_bytes == 700 * MIB
    job.use(3, memory_bytes=100 * MIB, job_memory_bytes=6000 * MIB)  # a server is beside it
    assert job.past().memory_bytes == 3000 * MIB, "half of what the kernel counts of both learners"


def test_what_learners_share_is_not_counted_beyond_what_they_had(job):
    job.use(0, memory_bytes=20000 * MIB)
    assert job.past().memory_bytes == 20000 * MIB, "nobody holds the limit"
    job.use(1, job_memory_bytes=6000 * MIB)
    assert job.past().memory_bytes == 8192 * MIB
    killed = replace(DONE, state=State.FAILED, kind=VerdictKind.OUT_OF_MEMORY)
    assert job.past(killed).memory_bytes == 20000 * MIB


def test_without_collectors_the_statuses_tell_the_memory(job):
    job.tell(Status("learner", 3, 1, State.TRAINING, metrics={"memory_bytes": 900.0 * MIB}))
    past = job.past()
    assert past.memory_bytes == 900 * MIB and past.cpus_used is None and past.gpus_used is None


def test_a_verdict_carries_what_earlier_attempts_have_used(job):
    first, _ = conclude(job.dir, job.plan, replace(DONE, state=State.FAILED), None)
    (job.dir / contract.verdict_file(1)).write_text(contract.to_json(first))
    job.began(2)
    second, _ = conclude(job.dir, job.plan, replace(DONE, attempt=2), None)
    assert [(past.attempt, past.state) for past in second.pasts] == [(1, "FAILED"),
                                                                     (2, "COMPLETED")]  # fmt: skip
    read = contract.from_json(Verdict, contract.to_json(second))
    assert read.pasts == second.pasts
    assert first.pasts[0].epoch_samples is None, "what broke off tells no epoch"


def test_of_very_many_lines_the_beginning_and_the_newest_are_read(job, monkeypatch):
    monkeypatch.setattr(used, "_MOST_BYTES", 2000)
    job.write([{"step": n, "epoch": 1, "time": BEGIN + 10 + n, "step_s": 1.0 if n < 100 else 9.0}
               for n in range(1, 201)])  # fmt: skip
    past = job.past(replace(DONE, finished_at=BEGIN + 220))
    assert past.steps == 200 and past.start_s == 10.0
    assert past.step_s == 9.0, "the newest count"


def test_an_attempt_that_was_judged_late_has_not_run_until_then(job):
    assert job.past(replace(DONE, finished_at=BEGIN + 86400)).held_s == 128


def test_a_verdict_comes_whatever_was_written(job):
    odd = {"step": 5, "epoch": 1, "time": BEGIN + 5, "step_s": float("nan"), "exchange_s": 1.0,
           "memory_bytes": float("inf")}  # fmt: skip
    job.write([odd, odd | {"step_s": 2.0}])
    past = job.past()
    assert past.memory_bytes is None and past.step_s == 2.0 and past.exchange_share == 0.5
    job.use(0, cpu_tenths={"many": 1})
    verdict, _ = conclude(job.dir, job.plan, DONE, None)
    assert verdict.state is State.COMPLETED and verdict.pasts == []


def test_of_a_job_that_never_began_there_is_no_past_and_a_rehearsal_is_told_apart(job):
    job.plan = replace(job.plan, rehearsal=Rehearsal(stage=1, steps=20))
    assert used.with_past(job.dir, job.plan, DONE, [], Status("supervisor", 0, 1, State.TRAINING,
                          started_at=BEGIN), []).pasts[0].is_rehearsal  # fmt: skip
    (job.dir / contract.status_file(1, "supervisor", 0)).unlink()
    assert conclude(job.dir, plan_of(TEXT), DONE, None)[0].pasts == []


@pytest.mark.parametrize("scheduler", ["local", "slurm"])
def test_a_learner_that_used_more_than_it_asked_for_where_nothing_limits_it_is_named(
    tmp_path, scheduler
):
    job = Job(tmp_path)
    plan = replace(job.plan, batch=contract.Batch(scheduler))
    use = LearnerUse(memory_bytes=9 * 2**30)
    contract.write_whole(tmp_path / contract.use_file(1, 0), contract.to_json(use))
    reason = conclude(tmp_path, plan, DONE, None)[0].reason
    excess = "a learner used 9.7 GB of memory, and `memory` is 8.6 GB: a cluster would have killed"
    assert (excess in reason) == (scheduler == "local")
