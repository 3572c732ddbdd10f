"""The supervisor with several learners under a real mpirun."""

import shlex
import sys
from pathlib import Path

import pytest
from node_job import SAVER, TRAINING_ID, Job, alive, kill, printed_pid, wait_until
from repository import REPOSITORY

from dlctl import contract
from dlctl.contract import State
from learner.system.segments import make_segment_folder, remove_segment_folder, segment_folder

PY = shlex.quote(sys.executable)
TORCHRUN = shlex.quote(str(Path(sys.executable).with_name("torchrun")))
CULPRIT = Path(REPOSITORY, "tests/support/culprit_program.py").read_text()
pytestmark = pytest.mark.mpi


@pytest.mark.first
def test_learners_share_one_mpi_world(tmp_path):
    job = Job.on_mpi(tmp_path, 2, f"{PY} -m mpi4py train.py")
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


@pytest.mark.parametrize(("how", "kind", "says"), [
    ("network 1 handles", "network", "Connection refused"),
    ("watchdog 1", "unknown", "vanished with its watchdog"),
    ("75 1", "try_again", "exit code 75"),
    ("MPI_Abort 1 mpi", "user_error", "MPI_Abort with error code 7"),
    ("0 1 mpi", "user_error", "ended with exit code 0 before the others were done"),
    ("segv 1 mpi", "unknown", "signal 11"),
])  # fmt: skip
def test_the_learner_that_failed_first_is_blamed_on_this_machine(tmp_path, how, kind, says):
    job = Job.on_mpi(tmp_path, 2, f"exec {PY} train.py {how}")
    job.write("train.py", CULPRIT)
    verdict = job.run()
    assert (verdict.kind, verdict.evidence.rank) == (kind, 1), (verdict.reason, job.output)
    assert says in verdict.reason


def test_an_mpi_that_reaches_nobody_is_the_networks_fault(tmp_path):
    """Each process may use another interface; it was a user's error."""
    others = sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo")
    if not others:
        pytest.skip("this machine has one interface only")
    chosen = f"case $RANK in 0) i=lo ;; *) i={others[0]} ;; esac"
    only = "export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1 OMPI_MCA_btl_tcp_if_include=$i"
    job = Job.on_mpi(tmp_path, 2, f"{chosen}; {only}; exec {PY} train.py")
    job.write("train.py", "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n")
    verdict = job.run()
    assert verdict.kind == "network", (verdict.reason, job.output)
    assert "btl_tcp_if_include" in verdict.hint


@pytest.mark.parametrize(("how", "kind", "says"), [
    ("exception", "user_error", "failed with exit code 1: train.py:22: ValueError: no labels"),
    ("78", "user_error", "failed with exit code 78"),
    ("segv", "unknown", "was killed by signal 11"),
    ("network", "network", "Connection refused"),
])  # fmt: skip
def test_the_process_of_torchrun_that_failed_first_is_named(tmp_path, how, kind, says):
    job = Job(tmp_path, f"exec {TORCHRUN} --standalone --nproc-per-node 2 train.py {how} 1")
    job.write("train.py", CULPRIT)
    verdict = job.run()
    assert (verdict.kind, str(verdict.state)) == (kind, "FAILED"), verdict.reason
    assert "Learner 0 on " in verdict.reason and ": rank 1 of its torchrun " in verdict.reason
    assert says in verdict.reason


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
