"""Checkpoints of several learners: restarts on other numbers of them, and what may go wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

RunRanks = Callable[..., subprocess.CompletedProcess[str]]
PROGRAM = Path(__file__).with_name("checkpoint_program.py")
pytestmark = pytest.mark.mpi


def test_a_state_moves_from_4_learners_to_2_to_3(run_ranks: RunRanks, tmp_path: Path) -> None:
    said = []
    for ranks in (4, 2, 3):
        done = run_ranks(ranks, PROGRAM, str(tmp_path), "")
        assert done.returncode == 0, done.stderr
        said += done.stdout.splitlines()
    assert said[0::2] == ["loaded None", "loaded (1, 4)", "loaded (2, 2)"]
    assert said[1::2] == [f"step {n} complete True saved {n}" for n in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000000002", "step-000000000003",
    ]  # fmt: skip
    (tmp_path / "step-000000000003" / "share-1.h5").unlink()
    done = run_ranks(2, PROGRAM, str(tmp_path), "")
    assert "step-000000000003 is skipped: share-1.h5 is missing" in done.stdout
    assert "loaded (2, 2)" in done.stdout


def test_one_writer_that_fails_costs_one_checkpoint(run_ranks: RunRanks, tmp_path: Path) -> None:
    done = run_ranks(2, PROGRAM, str(tmp_path), "kill")
    assert done.returncode == 0, done.stderr
    words = "the share of learner 1: its writer process was killed by signal 9"
    assert f"WARNING: no checkpoint at step 1: {words}" in done.stdout
    assert "step 1 complete False saved None" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.first
def test_a_learner_that_is_killed_leaves_a_whole_checkpoint(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    done = run_ranks(2, PROGRAM, str(tmp_path), "die")
    assert done.returncode != 0
    again = run_ranks(2, PROGRAM, str(tmp_path), "")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-2] in ("loaded (1, 2)", "loaded (2, 2)")
