"""Learners and servers as separate steps, with stand-ins: deaths, lost nodes, halting."""

import pytest
from node_job import alive, kill, wait_until
from worker_group_job import WorkerGroupJob

from dlctl import contract
from dlctl.contract import State


def finished(job, **ending):
    """Return the verdict of a job that left nothing behind."""
    process = ending.get("process") or job.start()
    job.hurry()
    verdict = job.finish(process)
    assert job.shared_memory() == []
    folder = job.dir / contract.server_dir(1)
    assert not (folder / "secret").exists()
    assert not any(alive(pid) for rank in range(9) for pid in job.lives(rank))
    return verdict


def test_each_learner_is_a_step_and_servers_end_last(tmp_path):
    job = WorkerGroupJob(tmp_path, 3, samples=200)
    verdict = finished(job)
    assert verdict.state is State.COMPLETED, job.output
    assert verdict.reason == "All 3 learners ended with exit code 0."
    assert job.done() == list(range(0, 200, 5))
    assert [job.status(rank).state for rank in range(3)] == [State.COMPLETED] * 3
    assert job.homes() == contract.Homes(2, [0], ended=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("early", "words"),
    [
        ("sys.exit(0)", "none of them joined the parameter server"),
        (
            "cursor = FileCursor(job_dir / contract.cursor_file(1), samples, 1)\n"
            "rank or cursor.done(cursor.take(5))\n"
            "os._exit(0)",
            "5 of 200 samples were done",
        ),
    ],
)
def test_learners_that_end_early_leave_a_warning(tmp_path, early, words):
    """A program may stop early, but the verdict says that it did."""
    job = WorkerGroupJob(tmp_path, 2, samples=200)
    for rank in range(2):
        (job.dir / f"bad-learner-{rank}").write_text(early)
    verdict = job.finish(job.start())
    assert verdict.state is State.COMPLETED, job.output
    assert verdict.reason == f"All 2 learners ended with exit code 0; {words}."


def test_only_the_killed_learner_is_restarted(tmp_path):
    job = WorkerGroupJob(tmp_path, 3)
    process = job.start()
    others = [job.living(0), job.living(2)]
    for _ in range(4):  # more deaths than are allowed without progress
        pid = job.living(1)
        life = job.dir / "lives" / f"1-{pid}"
        wait_until(lambda life=life: life.stat().st_size > 0)
        kill(pid)
        wait_until(lambda pid=pid: job.lives(1)[-1] != pid)
    assert (job.dir / contract.restarted_file(1)).exists()
    verdict = finished(job, process=process)
    assert verdict.state is State.COMPLETED, job.output
    assert [job.lives(0), job.lives(2)] == [[other] for other in others]
    assert job.output.count("learner 1 on") == 4
    assert "was killed by signal 9: restarting it in 0.5 s" in job.output
    assert job.status(1).metrics["restarts"] == 4
    # The only difference: samples that a learner reported, but had no time to note here.
    assert 0 <= len(range(0, job.samples, 5)) - len(job.done()) <= 4
    assert len(set(job.done())) == len(job.done())


# Servers -----------------------------------------------------------------------------------------


def test_a_killed_server_is_restarted(tmp_path):
    job = WorkerGroupJob(tmp_path, 2)
    process = job.start()
    pid = 0
    for _ in range(2):
        job.living(1)
        pid = job.server_pid(but=pid)
        kill(pid)
    job.server_pid(but=pid)
    verdict = finished(job, process=process)
    assert verdict.state is State.COMPLETED, job.output
    assert job.output.count("the server on") == 2
    assert len(job.lives(0)) == len(job.lives(1)) == 1


def test_shared_memory_of_a_server_killed_at_the_end_is_removed(tmp_path):
    job = WorkerGroupJob(tmp_path, 1, samples=30)
    (job.dir / "bad-server-0").write_text("9")
    verdict = finished(job)
    assert verdict.state is State.COMPLETED, job.output


@pytest.mark.parametrize(("code", "times"), [(3, 1), (1, 5)])
def test_a_server_that_cannot_run_is_named(tmp_path, code, times):
    job = WorkerGroupJob(tmp_path, 2)
    (job.dir / "bad-server-0").write_text(str(code))
    verdict = job.finish(job.start())
    assert job.shared_memory() == []
    assert verdict.state is State.FAILED
    assert "it is all wrong" in verdict.reason
    assert ("5 times in a row" in verdict.reason) == (times == 5)
    assert verdict.hint == "make it right"
    assert (verdict.evidence.role, verdict.evidence.rank) == ("server", 0)
    log = (job.dir / contract.server_log(1, 0)).read_text()
    assert log.count("it is all wrong") == times
    assert "  | [server 0 on h] it is all wrong" in job.output


# Nodes -------------------------------------------------------------------------------------------


def test_a_node_that_slurm_took_away_silently_is_given_up(tmp_path):
    """srun waits forever; on missing heartbeats or a dead step, the group asks Slurm."""
    job = WorkerGroupJob.on_fake_slurm(tmp_path, 2, 2)
    process = job.start()
    (tmp_path / "gone-n2").touch()
    kill(job.living(1))
    wait_until(lambda: job.homes().generation == 2)
    verdict = finished(job, process=process)
    assert verdict.state is State.COMPLETED, job.output
    assert "Node n2 is lost: Slurm took it out of the job." in job.output
    assert verdict.reason.endswith("learner 1 was lost with node n2.")


# The end that somebody wants ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_file", "state"),
    [(contract.HALT_REQUEST, State.HALTED), (contract.CANCEL_REQUEST, State.CANCELLED)],
)
def test_a_person_ends_all_learners(tmp_path, request_file, state):
    job = WorkerGroupJob(tmp_path, 3)
    process = job.start()
    for rank in range(3):
        job.living(rank)
    job.ask(request_file)
    verdict = job.finish(process)
    assert job.shared_memory() == []
    assert verdict.state is state, job.output
    assert [job.status(rank).state for rank in range(3)] == [state] * 3


def test_a_killed_supervisor_leaves_no_process(tmp_path):
    job = WorkerGroupJob(tmp_path, 2)
    process = job.start()
    pids = [job.living(0), job.living(1), job.server_pid()]
    kill(process.pid)
    process.communicate()
    wait_until(lambda: not any(map(alive, pids)))
    assert job.shared_memory() == []
