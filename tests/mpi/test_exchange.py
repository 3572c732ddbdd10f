"""Exchanges, the cursor and checkpoints of several ranks; accounts of killed learners' samples.

`python -m benchmarks.cursor --accounting 50` is the same account over many more rounds.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_tools import make_engine, read_state
from mpi_programs import memory_left

from benchmarks.cursor_accounting import account_file, settle
from psrv.cursor.base import Chunk, make_state

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("exchange_program.py")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.first("2-auto mpi torch-shm mpi torch")
@pytest.mark.costs(25)
@pytest.mark.parametrize(
    ("ranks", "names", "found"),
    [
        (1, "auto", "single"),
        (2, "auto mpi torch", "shm mpi torch"),
        (3, "mpi hierarchical", "mpi hierarchical"),
        pytest.param(4, "shm", "shm", marks=pytest.mark.long),
    ],
)
def test_exchanges_on_every_rank(ranks, names, found, run_ranks):
    digests = set()
    for name, its_name in zip(names.split(), found.split(), strict=True):
        done = run_ranks(ranks, PROGRAM, name, fresh=name == "torch")  # it needs the compiler
        assert done.returncode == 0, done.stderr
        assert f"all checks passed by {ranks} {its_name} " in done.stdout
        assert not memory_left()
        if name != "torch":  # whose sums are not in rank order
            digests.add(done.stdout.split()[-1])
    assert len(digests) == 1, "sums have the same bits in every exchange"


def test_learners_of_torchrun_share_memory_too():
    done = subprocess.run(
        [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2",
         str(PROGRAM), "auto"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "all checks passed by 2 shm " in done.stdout


CURSOR = Path(__file__).with_name("cursor_program.py")


@pytest.mark.costs(12)
@pytest.mark.first
def test_the_ranks_of_a_job_take_every_sample_once(tmp_path, run_ranks):
    done = run_ranks(4, CURSOR, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "every sample once on 4" in done.stdout


def test_killed_learners_account_for_every_sample():
    account = account_file(rounds=8, seed=1)
    assert (account.missing, account.twice) == (0, 0), account
    assert account.samples_in_history > 0


def test_an_account_counts_missing_and_repeated_samples():
    state = make_state(10, 5, 25, [(12, 14)])
    history = [Chunk(0, 0, 10), Chunk(1, 0, 2), Chunk(1, 4, 10), Chunk(2, 0, 5)]
    good = {"passes_finished": 1, "samples_in_history": 23, "missing": 0, "twice": 0}
    assert settle(state, history) == good
    assert settle(state, [*history, Chunk(0, 3, 5)])["twice"] == 2
    assert settle(state, [*history, Chunk(1, 3, 4)])["twice"] == 1  # it will be given out again
    assert settle(state, history[1:])["missing"] == 10


CHECKPOINT = Path(__file__).with_name("checkpoint_program.py")


def test_a_state_moves_from_4_learners_to_2_to_3(run_ranks, tmp_path):
    said = []
    for ranks in (4, 2, 3):
        done = run_ranks(ranks, CHECKPOINT, str(tmp_path), "")
        assert done.returncode == 0, done.stderr
        said += done.stdout.splitlines()
    assert said[0::2] == ["loaded None", "loaded (1, 4)", "loaded (2, 2)"]
    assert said[1::2] == [f"step {n} complete True saved {n}" for n in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000000002", "step-000000000003",
    ]  # fmt: skip
    (tmp_path / "step-000000000003" / "share-1.h5").unlink()
    done = run_ranks(2, CHECKPOINT, str(tmp_path), "")
    assert "step-000000000003 is skipped: share-1.h5 is missing" in done.stdout
    assert "loaded (2, 2)" in done.stdout


def test_one_writer_that_fails_costs_one_checkpoint(run_ranks, tmp_path):
    done = run_ranks(2, CHECKPOINT, str(tmp_path), "kill")
    assert done.returncode == 0, done.stderr
    words = "the share of learner 1: its writer process was killed by signal 9"
    assert f"WARNING: no checkpoint at step 1: {words}" in done.stdout
    assert "step 1 complete False saved None" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.first
def test_a_learner_that_is_killed_leaves_a_whole_checkpoint(run_ranks, tmp_path):
    done = run_ranks(2, CHECKPOINT, str(tmp_path), "die")
    assert done.returncode != 0
    state = make_engine(tmp_path).load(read_state)
    assert state["step"] in (1, 2)
    assert torch.equal(state["full"], torch.arange(len(state["full"])) + state["step"])
    assert torch.equal(state["moments"], state["full"] + state["step"])
