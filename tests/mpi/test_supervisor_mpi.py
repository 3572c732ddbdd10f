"""The supervisor with several learners under a real mpirun."""

import shlex
import sys

import pytest
from node_job import SAVER, TRAINING_ID, Job, alive, kill, printed_pid, wait_until

from dlctl import contract
from dlctl.contract import State
from learner.system.segments import make_segment_folder, remove_segment_folder, segment_folder

PY = shlex.quote(sys.executable)
pytestmark = pytest.mark.mpi


@pytest.mark.first
def test_learners_share_one_mpi_world(tmp_path):
    job = Job.on_mpi(tmp_path, 2, f"{PY} train.py")
    job.write("train.py", "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))")
    assert job.run().state is State.COMPLETED, job.output
    assert (job.log(0), job.log(1)) == ("2\n", "2\n")


@pytest.mark.first
def test_killed_learner_is_the_one_at_fault(tmp_path):
    """It has joined the others' world, which mpirun aborts."""
    job = Job.on_mpi(tmp_path, 2, f"{PY} train.py")
    job.write("train.py", "from mpi4py import MPI\nMPI.COMM_WORLD.barrier()\n" + SAVER)
    process = job.start()
    other, victim = printed_pid(job, 0), printed_pid(job, 1)
    kill(victim)
    verdict = job.finish(process)
    assert (verdict.state, verdict.evidence.rank) == (State.FAILED, 1), job.output
    assert verdict.evidence.signal == 9
    assert job.status(0).state is State.CANCELLED and not alive(other)


@pytest.mark.first
def test_every_learner_saves_on_halt(tmp_path):
    job = Job.on_mpi(tmp_path, 2, f"{PY} train.py")
    # One is quick and the other slow: the end of the first must not end the second.
    slow = SAVER.replace("def save(*_):", "def save(*_):\n    time.sleep(2 * int(saved[-1]))")
    job.write("train.py", slow)
    process = job.start()
    pids = [printed_pid(job, 0), printed_pid(job, 1)]
    job.ask(contract.HALT_REQUEST)
    verdict = job.finish(process)
    assert verdict.state is State.HALTED, job.output
    for rank in (0, 1):
        assert (job.dir / contract.CHECKPOINTS / f"saved-{rank}").exists()
    assert not any(alive(pid) for pid in pids)


def test_nothing_outlives_a_killed_supervisor(tmp_path):
    job = Job.on_mpi(tmp_path, 2, f"{PY} train.py")
    job.write("train.py", SAVER)
    process = job.start()
    pids = [printed_pid(job, rank) for rank in (0, 1)]
    kill(process.pid)
    process.communicate()
    wait_until(lambda: not any(alive(pid) for pid in pids))
    # An agent that is killed with its supervisor leaves its folder to the next attempt's.
    make_segment_folder(TRAINING_ID, 2)
    remove_segment_folder(TRAINING_ID, 2)
    assert not segment_folder(TRAINING_ID, 1).exists()


BUILD = """\
import torch
def build(arguments):
    {first}
    model = torch.nn.Linear(2, 1)
    x = torch.zeros(8, 2)
    return {{
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": torch.nn.MSELoss(), "train": torch.utils.data.TensorDataset(x, x[:, :1]),
    }}
"""


def test_a_loop_that_ended_with_0_before_its_end_has_failed(tmp_path):
    """The other learner waits for this one."""
    ends = "import os; os.environ['RANK'] == '1' and os._exit(0)"
    job = Job.on_mpi(tmp_path, 2, None, job="train.py")
    job.write("train.py", BUILD.format(first=ends))
    verdict = job.run()
    assert (verdict.state, verdict.evidence.rank) == (State.FAILED, 1), job.output
    assert "ended before the training loop had finished" in verdict.reason


LEFT_RUNNING = """\
import multiprocessing, subprocess, threading, time
    threading.Thread(target=time.sleep, args=[600]).start()
    multiprocessing.Process(target=time.sleep, args=[600]).start()
    subprocess.Popen(['sleep', '600'])"""


def test_leftover_processes_do_not_delay_the_end(tmp_path):
    job = Job.on_mpi(tmp_path, 2, None, job="train.py")
    job.write("train.py", BUILD.format(first=LEFT_RUNNING))
    verdict = job.run()
    assert verdict.state is State.COMPLETED, job.output + job.log()
    assert (job.dir / "results" / "model.pt").exists()
    fetch = f"dlctl fetch results {job.plan.training_id}"
    assert job.log().endswith(f"the trained model is in results/model.pt at the site: {fetch}\n")
