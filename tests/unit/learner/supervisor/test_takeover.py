"""The verdict on an attempt whose supervisor was killed."""

from dataclasses import replace

import pytest
from node_job import Job

from dlctl import contract
from dlctl.contract import State, VerdictKind
from learner.supervisor.__main__ import REQUEUED
from learner.supervisor.__main__ import main as supervise
from learner.supervisor.takeover import judge, main

K = VerdictKind
FULL = "slurmstepd-n1: error: StepId=1.batch exceeded memory limit (529694720 > 209715200)"


@pytest.mark.parametrize(
    ("word", "output", "kind", "reason"),
    [
        ("FAILED", FULL, K.OUT_OF_MEMORY, "(505 MiB; asked for 200 MiB)"),
        ("CANCELLED", FULL, K.OUT_OF_MEMORY, "(505 MiB; asked for 200 MiB)"),
        ("CANCELLED", "epoch 1", K.CANCELLED, "cancelled, but not by dlctl"),
        ("DROPPED", FULL, K.OUT_OF_MEMORY, "(505 MiB; asked for 200 MiB)"),
        ("DROPPED", "epoch 1", K.SCHEDULER, "Slurm itself ended the job"),
        ("NODE_FAIL", FULL, K.NODE_LOST, "A node of the job was lost."),
        ("FAILED", "slurmstepd: *** JOB 7 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***",
         K.TIME_LIMIT, "time limit"),
        ("FAILED", "epoch 1", K.UNKNOWN, "it was killed"),
    ],
)  # fmt: skip
def test_the_schedulers_word_and_the_jobs_output_say_why(tmp_path, word, output, kind, reason):
    job = Job(tmp_path, "true", batch=contract.Batch("slurm"))
    path = job.dir / contract.job_output(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    words = "slurmstepd-n1: error: Exceeded job memory limit\n" if output == FULL else ""
    path.write_text(f"12:00:00 TRAINING: train.py\n{output}\n{words}")
    verdict = judge(job.dir, job.plan, 1, word)
    assert verdict.kind == kind
    assert reason in verdict.reason
    assert verdict.hint or kind is K.CANCELLED
    if kind is K.OUT_OF_MEMORY:  # more than the 2.5 times that it had
        command = f"dlctl resume {job.plan.training_id} --memory 4GiB"
        assert verdict.hint.endswith(f"(now: 1 GiB per learner): {command}"), verdict.hint
    assert verdict.state is (State.CANCELLED if kind is K.CANCELLED else State.FAILED)
    assert verdict.evidence is not None and verdict.evidence.scheduler_state == word


@pytest.mark.parametrize(
    ("request_file", "state", "kind", "reason"),
    [
        (contract.CANCEL_REQUEST, State.CANCELLED, K.CANCELLED, "Cancelled on request; a node"),
        (contract.HALT_REQUEST, State.HALTED, K.REQUESTED,
         "Halted on request, before all was saved; a node"),
    ],
)  # fmt: skip
def test_what_a_person_has_asked_for_is_no_failure(tmp_path, request_file, state, kind, reason):
    """The next link of a chain may begin, and judge, before `dlctl cancel` takes it away."""
    job = Job(tmp_path, "true")
    (job.dir / contract.CONTROL).mkdir(exist_ok=True)
    job.ask(request_file)
    verdict = judge(job.dir, job.plan, 1, "NODE_FAIL")
    assert (verdict.state, verdict.kind) == (state, kind)
    assert verdict.reason.startswith(reason)


def test_a_lost_node_is_named_as_long_as_slurm_takes_it_for_dead(tmp_path):
    job = Job(tmp_path, "true")
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    sinfo = bin_dir / "sinfo"
    sinfo.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked; cat {tmp_path}/nodes\n')
    sinfo.chmod(0o755)
    plan = replace(
        job.plan, batch=replace(job.plan.batch, scheduler="slurm"),
        launch=contract.Launch("srun", [f"{bin_dir}/srun"]),
    )  # fmt: skip
    for role, rank, host in (("supervisor", 0, "n1"), ("learner", 0, "n1"), ("learner", 1, "n2")):
        path = job.dir / contract.status_file(1, role, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        status = contract.Status(role, rank, 1, State.TRAINING, host=host, heartbeat_at=60.0 + rank)
        contract.write_whole(path, contract.to_json(status))
    plan = replace(plan, resources=replace(plan.resources, learners=2))
    for nodes, host in (("n1 down*\nn2 idle\n", "n1"), ("n1 idle\nn2 mixed*\n", "n2"),
                        ("n1 idle\nn2 idle\n", "")):  # fmt: skip
        (tmp_path / "nodes").write_text(nodes)
        verdict = judge(job.dir, plan, 1, "NODE_FAIL")
        assert verdict.evidence is not None
        assert verdict.evidence.host == host
        assert verdict.finished_at == 61.0, "it ended when its processes fell silent"
        named = f"The node {host} was lost." if host else "A node of the job was lost."
        assert verdict.reason == named
    assert "-n n1,n2" in (tmp_path / "asked").read_text()


def test_the_log_of_a_job_that_was_killed_says_so(tmp_path):
    job = Job(tmp_path, "true")
    (job.dir / contract.attempt_dir(1)).mkdir(parents=True, exist_ok=True)
    (job.dir / contract.plan_file(1)).write_text(contract.to_json(job.plan))
    for _ in range(2):
        main([str(job.dir), "1", "FAILED"])
    log = (job.dir / contract.job_output(1)).read_text()
    assert log.count("FAILED: The job ended without a verdict: it was killed.") == 1


def test_what_fails_after_the_verdict_leaves_the_verdict_alone(tmp_path, capsys):
    """A job that was requeued begins on a node where nothing works."""
    job = Job(tmp_path, "true")
    path = job.dir / contract.verdict_file(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    told = contract.to_json(contract.Verdict(1, "7", State.COMPLETED, "done"))
    path.write_text(told)
    for name in (contract.PLAN, contract.plan_file(1)):
        (job.dir / name).write_text("{")
    assert supervise([str(job.dir), "1", REQUEUED]) == 1
    assert path.read_text() == told and "what was to follow" in capsys.readouterr().out
