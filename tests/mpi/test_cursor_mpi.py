"""The cursor in a window, in jobs of 1, 2 and 4; and accounts of what killed learners trained on.

`python -m benchmarks.cursor --accounting 50` is the same account over many more rounds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cursor_accounting import Account, account_file, account_window, settle
from psrv.cursor.base import Chunk, make_state

PROGRAM = Path(__file__).with_name("cursor_program.py")


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_cursor_on_every_rank(
    ranks: int, run_ranks: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_ranks(ranks, PROGRAM)
    assert done.returncode == 0, done.stderr
    assert f"all checks passed by {ranks}" in done.stdout


def check(account: Account) -> None:
    assert (account.missing, account.twice) == (0, 0), account
    assert account.samples_in_history > 0


def test_independent_learners_account_for_every_sample() -> None:
    check(account_file(rounds=8, seed=1))


@pytest.mark.mpi
def test_a_job_accounts_for_every_sample() -> None:
    check(account_window(rounds=3, seed=1))


def test_an_account_finds_what_is_missing_or_twice() -> None:
    state = make_state(10, 5, 25, [(12, 14)])
    history = [Chunk(0, 0, 10), Chunk(1, 0, 2), Chunk(1, 4, 10), Chunk(2, 0, 5)]
    good = {"passes_finished": 1, "samples_in_history": 23, "missing": 0, "twice": 0}
    assert settle(state, history) == good
    assert settle(state, [*history, Chunk(0, 3, 5)])["twice"] == 2
    assert settle(state, [*history, Chunk(1, 3, 4)])["twice"] == 1  # it will be given out again
    assert settle(state, history[1:])["missing"] == 10
