"""The library ddl under mpiexec, torchrun and alone; what an error or a kill leaves behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi_programs import memory_left, mpi_command, mpi_environment
from node_job import alive

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("ddl_program.py")
TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
FLOATS = ["float32", "float64", "bfloat16", "float16"]
SHAPE = st.lists(st.integers(0, 9), max_size=3) | st.tuples(st.integers(1, 200_000)).map(list)
CASE = st.fixed_dictionaries(
    {
        "shapes": st.lists(SHAPE, max_size=6),
        "dtypes": st.lists(st.sampled_from(FLOATS), min_size=1, max_size=3),
        "op": st.sampled_from(["sum", "avg"]),
        "mapping": st.booleans(),
        "mpi": st.sampled_from([False, False, True]),
        "check": st.booleans(),
        "transposed": st.booleans(),
    }
)


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    """A file with the same cases for every learner of every run."""
    found = []

    @settings(max_examples=50, derandomize=True, database=None, deadline=None)
    @given(CASE)
    def collect(case):
        found.append(case)

    collect()
    assert len(found) >= 40
    path = tmp_path_factory.mktemp("ddl") / "cases.json"
    path.write_text(json.dumps(found))
    return path


@pytest.mark.first("mpiexec 2")
@pytest.mark.costs(15)
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("alone", marks=pytest.mark.long),
        "mpiexec 2",
        pytest.param("mpiexec 4", marks=pytest.mark.long),
        pytest.param("torchrun 2", marks=pytest.mark.long),
    ],
)
def test_every_check_on_every_learner(launcher, cases, run_ranks, tmp_path):
    kind, _, count = launcher.partition(" ")
    checkpoints = {"CHECKPOINTS": str(tmp_path)}
    if kind == "mpiexec":
        done = run_ranks(int(count), PROGRAM, str(cases), **checkpoints)
    else:
        start = [*TORCHRUN, f"--nproc-per-node={count}"] if count else [sys.executable]
        done = subprocess.run(
            [*start, str(PROGRAM), str(cases)], env=mpi_environment(**checkpoints),
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    exchange = "shm" if count else "single"
    assert f"all checks passed by {count or 1} {exchange} " in done.stdout
    assert not memory_left()
    # Sums in rank order: neither another run nor another launcher changes a bit.
    seen = DIGESTS.setdefault(count, done.stdout.split()[-2:])
    assert done.stdout.split()[-2:] == seen


def test_every_check_on_nodes_with_unequally_many_learners(cases, run_ranks, tmp_path):
    done = run_ranks(3, PROGRAM, str(cases), NODES="aab", CHECKPOINTS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "all checks passed by 3 hierarchical " in done.stdout
    assert not memory_left()


DIGESTS = {}
"""What learners of each number have computed: sums, weights."""

ENDLESS = """
import os, sys, torch
from learner import ddl
torch.set_num_threads(1)

ddl.init(exchange=(sys.argv + ["auto"])[2])
model = torch.nn.Sequential(*[torch.nn.Linear(20, 20) for _ in range(8)])
optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001))
for step in range(10**9):
    optimizer.zero_grad()
    model(torch.ones(4, 20)).sum().backward()
    optimizer.step()
    if step == 5:
        print("pid", ddl.rank(), os.getpid(), flush=True)
        if sys.argv[1] == "error" and ddl.rank() == 1:
            raise ValueError("this learner can't continue")
"""


@pytest.fixture
def endless(tmp_path, zygote):
    """Return a function that starts 2 learners that train for ever."""
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)

    def start(how):
        fresh = "torch" in how  # its exchange needs the compiler
        command = mpi_command(2) if fresh else mpi_command(2, zygote.rank())
        return subprocess.Popen(
            [*command, str(program), *how.split()], env=mpi_environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


@pytest.mark.first
def test_a_kill_in_the_backward_pass_ends_the_others(endless):
    with endless("kill") as job:
        assert job.stdout is not None
        lines = [job.stdout.readline().split() for _ in range(2)]
        pids = {int(rank): int(pid) for _, rank, pid in lines}
        assert sorted(pids) == [0, 1]
        os.kill(pids[1], signal.SIGKILL)
        assert job.wait(timeout=120) != 0
    assert not any(map(alive, pids.values()))
    assert not memory_left()


@pytest.mark.parametrize("exchange", ["shm", "torch"])
def test_an_error_of_one_learner_ends_the_others(endless, exchange):
    with endless(f"error {exchange}") as job:
        out, err = job.communicate(timeout=120)
    assert job.returncode != 0
    assert "[rank 1 on " in err and "ValueError: this learner can't continue" in err
    assert not any(alive(int(line.split()[2])) for line in out.splitlines() if line[:3] == "pid")
    assert not memory_left()
