"""The cursor shared by the ranks of an MPI job; and accounts of what killed learners trained on.

`python -m benchmarks.cursor --accounting 50` is the same account over many more rounds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cursor_accounting import account_file, settle
from psrv.cursor.base import Chunk, make_state

PROGRAM = Path(__file__).with_name("cursor_program.py")


@pytest.mark.costs(12)
@pytest.mark.first
@pytest.mark.mpi
def test_the_ranks_of_a_job_take_every_sample_once(
    tmp_path: Path, run_ranks: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_ranks(4, PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "every sample once on 4" in done.stdout


def test_killed_learners_account_for_every_sample() -> None:
    account = account_file(rounds=8, seed=1)
    assert (account.missing, account.twice) == (0, 0), account
    assert account.samples_in_history > 0


def test_an_account_counts_missing_and_repeated_samples() -> None:
    state = make_state(10, 5, 25, [(12, 14)])
    history = [Chunk(0, 0, 10), Chunk(1, 0, 2), Chunk(1, 4, 10), Chunk(2, 0, 5)]
    good = {"passes_finished": 1, "samples_in_history": 23, "missing": 0, "twice": 0}
    assert settle(state, history) == good
    assert settle(state, [*history, Chunk(0, 3, 5)])["twice"] == 2
    assert settle(state, [*history, Chunk(1, 3, 4)])["twice"] == 1  # it will be given out again
    assert settle(state, history[1:])["missing"] == 10
