"""What programs of any framework get: the halt, the newest checkpoint, the batches of a step."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from repository import REPOSITORY

from learner.adapters import Batches, hugging_face, lightning, mark_complete, newest
from learner.adapters.dcp import Checkpoints
from learner.errors import EXIT_HALTED

PROGRAM = """\
import time
from learner import adapters
halt = adapters.Halt()
print("ready", flush=True)
while not halt.asked:
    time.sleep(0.01)
print("saved", end="")
halt.leave()
"""


def test_a_program_that_saves_at_the_signal_says_so_by_its_exit_code():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR2)
    assert (process.communicate(timeout=60)[0], process.returncode) == ("saved", EXIT_HALTED)


def test_the_room_needs_no_framework_until_it_is_used():
    """A Python without site-packages: not even numpy is there."""
    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from learner.adapters import Halt, dcp, hugging_face, lightning, tf_keras, xgboost
print(Halt().asked)
"""
    argv = [sys.executable, "-S", "-E", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_the_newest_complete_checkpoint_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    assert newest("checkpoint-*") is None
    for step in (8, 9, 10):
        (tmp_path / f"checkpoint-{step}/inner").mkdir(parents=True)
        (tmp_path / f"checkpoint-{step}/inner/model.bin").write_text("x" * step)
    assert newest("checkpoint-*") == tmp_path / "checkpoint-10"
    mark_complete(tmp_path / "checkpoint-9")
    assert newest("checkpoint-*") == tmp_path / "checkpoint-9", "10 was being written"
    said = json.loads((tmp_path / "checkpoint-9/complete.json").read_text())
    assert said == {"files": {"inner/model.bin": {"size_bytes": 9}}}


def test_a_trainer_never_begins_with_a_checkpoint_that_has_no_mark(tmp_path, monkeypatch):
    """Killed while it wrote its first one: no other has a mark, either."""
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    (tmp_path / "checkpoint-20").mkdir()
    (tmp_path / "checkpoint-20/model.safetensors").write_text("x")
    assert hugging_face.newest_checkpoint() is None
    mark_complete(tmp_path / "checkpoint-20")
    assert hugging_face.newest_checkpoint() == str(tmp_path / "checkpoint-20")


def test_a_file_of_lightning_that_was_cut_off_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    assert lightning.newest_checkpoint() == (None, 0)
    for name in ("step=9.ckpt", "step=20.ckpt", "step=40.ckpt"):
        torch.save({"state": torch.ones(100)}, tmp_path / name)
    assert lightning.newest_checkpoint() == (str(tmp_path / "step=40.ckpt"), 40)
    whole = (tmp_path / "step=40.ckpt").read_bytes()
    (tmp_path / "step=40.ckpt").write_bytes(whole[: len(whole) // 2])
    assert lightning.newest_checkpoint() == (str(tmp_path / "step=20.ckpt"), 20)
    (tmp_path / "step=40-v1.ckpt").write_bytes(whole)
    assert lightning.newest_checkpoint() == (str(tmp_path / "step=40-v1.ckpt"), 40)


def test_files_that_vanish_while_it_looks_are_left_out(tmp_path, monkeypatch):
    """Another learner removes an old checkpoint."""
    for step in (1, 2):
        (tmp_path / f"round-{step}.ubj").write_text("x")
    walk = os.walk

    def and_remove(root):
        for found in walk(root):
            (tmp_path / "round-1.ubj").unlink()
            yield found

    monkeypatch.setattr(os, "walk", and_remove)
    assert newest("round-*.ubj", tmp_path) == tmp_path / "round-2.ubj"


def test_a_program_that_goes_on_takes_the_batches_that_come_next():
    whole = Batches(10, 3, seed=1)
    steps = [batch for _ in range(4) for batch in whole]
    assert [len(list(Batches(10, 3))), len(steps)] == [3, 12]
    for first in (0, 1, 3, 4, 8):
        rest = Batches(10, 3, first, seed=1)
        assert [b for _ in range(4) for b in rest][: 12 - first] == steps[first:]
    first_epoch = [index for batch in steps[:3] for index in batch]
    assert len(set(first_epoch)) == 9, "no sample twice"
    assert steps[:3] != steps[3:6], "each epoch has an order of its own"
    parts = [list(Batches(10, 3, seed=1, rank=rank, learners=2)) for rank in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == [sorted(b) for b in steps[:3]]


@pytest.mark.parametrize(("batch_size", "learners"), [(1, 2), (11, 1)])
def test_a_batch_that_fits_nobody_is_refused(batch_size, learners):
    with pytest.raises(ValueError, match=f"batch_size {batch_size} must be at least {learners}"):
        Batches(10, batch_size, learners=learners)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_sharded_checkpoint_is_whole_or_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    kept = Checkpoints(keep=2)
    state = {"weight": torch.arange(3.0)}
    assert kept.restore(state) == 0
    for step in (5, 9, 10):
        state["weight"] += 1
        kept.save(step, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sharded-10", "sharded-9"]
    (tmp_path / ".sharded-11.part-0").mkdir()  # killed while it wrote
    (tmp_path / ".sharded-11.part-0/x").write_text("x")
    again = {"weight": torch.zeros(3)}
    assert Checkpoints().restore(again) == 10
    assert again["weight"].tolist() == [3, 4, 5]
    kept.save(10, state)
    assert Checkpoints().restore(again) == 10, "the same step once more"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sharded-10", "sharded-9"]
    with pytest.raises(ValueError, match="keep 0"):
        Checkpoints(keep=0)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_late_process_leaves_what_its_successor_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("DLCTL_ATTEMPT", "9")
    for attempt in ("9.old", "8", "10", "10.old"):
        (tmp_path / f".sharded-7.part-{attempt}").mkdir()
    Checkpoints().save(5, {"weight": torch.arange(3.0)})
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".sharded-7.part-10", ".sharded-7.part-10.old", "sharded-5"]
