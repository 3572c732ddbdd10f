"""Checkpoints of one learner: their content, what a crash leaves, and what is loaded."""

import collections
import errno
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from checkpoint_tools import (
    LARGE,
    SETTINGS,
    FailingDisk,
    PowerLoss,
    make_engine,
    newest_step,
    read_state,
    same,
    state_of,
    store,
)  # fmt: skip
from repository import REPOSITORY

from dlctl import contract
from learner.checkpoint.engine import Keep
from learner.checkpoint.load import check_settings, use_newest
from learner.checkpoint.partition import parts_of
from learner.checkpoint.state_tree import Pieces, pack
from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.publish import remove_leftovers
from learner.errors import UserFault
from learner.job.context import ATTEMPT_VARIABLE, JOB_VARIABLE

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def test_any_state_is_restored_exactly(tmp_path):
    state = {
        "tensors": {str(d): (torch.arange(6).reshape(2, 3) % 2).to(d) for d in DTYPES},
        "odd": [torch.tensor(1.5), torch.empty(0, 3), torch.arange(6.0).reshape(2, 3).t()],
        0: {"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "step": torch.tensor(3.0), "none": None},
        "numbers": [math.pi, -0.0, math.inf, math.nan, 2**80, True, "ä\n", b"\x00\xff"],
        "arrays": [np.arange(3, dtype=np.uint32), np.array([True, False]), np.float64(0.1)],
        "counter": collections.Counter({30: 1, 80: 1}),
        "large": torch.arange(LARGE).bfloat16(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }
    assert make_engine(tmp_path).save(3, state)
    again = make_engine(tmp_path).load(read_state)
    assert same(state, again)
    assert math.copysign(1, again["numbers"][1]) == -1


def test_what_a_checkpoint_cannot_hold_is_named():
    with pytest.raises(UserFault, match=r"state\['schedule'\]\['f'\].*type function"):
        pack({"schedule": {"f": lambda step: step}})


@pytest.mark.parametrize("learners", [1, 2, 3, 7])
def test_bytes_that_all_learners_hold_are_divided_evenly(learners):
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(0, 90_000, (40,), generator=generator).tolist()
    packed = pack([torch.zeros(n, dtype=torch.bfloat16 if n % 2 else torch.float64) for n in sizes])
    seen = [torch.zeros(n, dtype=torch.int8) for n in sizes]
    written = []
    for rank in range(learners):
        parts = parts_of(packed, rank, learners)
        written.append(sum(part.values.numel() * part.values.itemsize for part in parts))
        for part in parts:
            number, start = map(int, part.name.split(":"))
            item_bytes = packed.leaves[number].item_bytes
            count = part.values.numel() * part.values.itemsize // item_bytes
            seen[number][start : start + count] += 1
    assert all(bool((one == 1).all()) for one in seen)
    assert max(written) - min(written) < 300_000


@pytest.mark.first("True-True", "False-True")
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_a_crash_at_any_write_leaves_a_complete_checkpoint(tmp_path, torn, replace):
    before, crashes, crashed = tmp_path / "before", 0, True
    for step in (10, 20):
        store(before, step)
    if replace:  # a damaged one has the name of the new one
        (store(before, 30) / layout.MARKER_FILE).unlink()
        store(before, 10)
    while crashed:  # at the first write, at the second, … until all writes succeed
        root = tmp_path / str(crashes)
        shutil.copytree(before, root)
        try:
            store(root, 30, FailingDisk(crashes, PowerLoss, torn=torn))
        except PowerLoss:
            crashes += 1
        else:
            crashed = False
        assert newest_step(root) in (10, 20, 30)
        remove_leftovers(root, Disk())
        store(root, 40)
        assert newest_step(root) == 40
        assert len(list(root.iterdir())) == 2
    assert crashes > 15


@pytest.mark.parametrize("allowed", range(12))
def test_a_failing_disk_leaves_only_the_old_checkpoints(tmp_path, allowed):
    class Full(FailingDisk):
        def remove(self, path):
            Disk().remove(path)

    store(tmp_path, 10)
    said = []
    engine = make_engine(tmp_path, said, disk=Full(allowed, OSError))
    assert engine.save(20, {"weights": torch.ones(LARGE)})
    assert not engine.wait()
    assert said == [said[0]]
    assert said[0].startswith("WARNING: no checkpoint at step 20: ")
    assert "no more" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == [layout.directory_name(10)]
    assert newest_step(tmp_path) == 10


def damage(directory, kind):
    """Damage a checkpoint; return the words that the warning must contain."""
    share, marker = directory / layout.share_file(0), directory / layout.MARKER_FILE
    content = bytearray(share.read_bytes())
    if kind == "flip":
        record = layout.parse_record((directory / layout.record_file(0)).read_bytes())
        content[record.pieces[1].offset_bytes + 9] ^= 1  # in the second tensor
        share.write_bytes(content)
        return "['big']"
    if kind == "cut":
        share.write_bytes(content[:-1])
        return "share-0.h5 has"
    if kind == "no share":
        share.unlink()
        return "share-0.h5 is missing"
    if kind == "no marker":
        marker.unlink()
        return "complete.json is missing"
    if kind == "bad marker":
        marker.write_text("{")
    elif kind == "marker of another kind":
        marker.write_text("[1]")
    else:
        file = directory / kind
        file.write_text(file.read_text().replace("0", "1", 1))
        return f"{kind} does not match its checksum"
    return "complete.json can't be understood"


@pytest.mark.parametrize(
    "kind",
    ["flip", "cut", "no share", "no marker", "bad marker", "marker of another kind",
     layout.TREE_FILE, layout.record_file(0)],
)  # fmt: skip
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, kind):
    store(tmp_path, 10)
    words = damage(store(tmp_path, 20), kind)
    said = []
    assert newest_step(tmp_path, said) == 10
    assert len(said) == 1
    assert f"WARNING: the checkpoint {layout.directory_name(20)} is skipped" in said[0]
    assert words in said[0]


class OneOfTwo:
    """Rank 0, which finds all whole, while its peer finds the newest checkpoint damaged."""

    rank, size = 0, 2

    def __init__(self):
        self._of_peer = ["share-1.h5 ends too early", None]

    def share(self, value):
        return value

    def collect(self, value):
        return [value, self._of_peer.pop(0)]


def test_all_learners_go_back_if_one_of_them_finds_damage(tmp_path):
    for step in (10, 20):
        store(tmp_path, step)
    said = []
    found = use_newest(tmp_path, OneOfTwo(), said.append, lambda loaded: loaded.marker.step)
    assert found is not None
    assert (found.step, found.used, found.damaged) == (10, 10, [20])
    name = layout.directory_name(20)
    assert said == [f"the checkpoint {name} is skipped: share-1.h5 ends too early"]


@pytest.mark.parametrize(
    "place",
    [
        "pathlib.Path.iterdir",
        "os.open",
        "os.preadv",
        "pathlib.Path.read_bytes",
        "pathlib.Path.stat",
    ],
)
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_failing_file_system_is_no_damage(tmp_path, monkeypatch, place, number):
    for step in (10, 20):
        store(tmp_path, step)

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(place, fail)
        with pytest.raises(UserFault, match=rf"can't be read: .*{os.strerror(number)}"):
            newest_step(tmp_path)
    store(tmp_path, 30, keep=Keep(3))
    assert layout.steps_present(tmp_path) == [30, 20, 10]


def test_a_training_never_starts_over_if_all_checkpoints_are_damaged(tmp_path):
    for step in (10, 20):
        damage(store(tmp_path, step), "flip" if step == 10 else "bad marker")
    said = []
    with pytest.raises(UserFault, match=r"none of the 2 checkpoints in .* is whole"):
        newest_step(tmp_path, said)
    assert len(said) == 2
    assert layout.steps_present(tmp_path) == [20, 10]


def test_of_later_checkpoints_only_damaged_ones_are_removed(tmp_path):
    for step in (1000, 2000, 3000):
        store(tmp_path, step, keep=Keep(3))
    damage(tmp_path / layout.directory_name(3000), "flip")
    said = []
    for step in (10, 20):  # a script that does not load first
        assert make_engine(tmp_path, said).save(step, state_of(step))
    assert layout.steps_present(tmp_path) == [3000, 2000, 1000, 20, 10]
    assert said == [f"WARNING: {tmp_path} holds checkpoints of later steps too: they stay, and "
                    "the next start takes the newest"] * 2  # fmt: skip
    engine = make_engine(tmp_path, said)
    assert engine.load(read_state)["step"] == 2000
    assert engine.save(2010, state_of(2010))
    assert layout.steps_present(tmp_path) == [2010, 2000]


def test_a_writer_publishes_nothing_once_a_later_attempt_has_begun(tmp_path, monkeypatch):
    """Even if that has not saved anything, and so has not disowned the folder."""
    root, begun = tmp_path / "checkpoints", tmp_path / contract.submit_begin(2)
    begun.parent.mkdir(parents=True)
    monkeypatch.setenv(JOB_VARIABLE, str(tmp_path))
    monkeypatch.setenv(ATTEMPT_VARIABLE, "1")
    said = []
    engine = make_engine(root, said)
    assert engine.save(10, state_of(10)) and engine.wait()
    begun.touch()
    assert engine.save(20, state_of(20)) and not engine.wait()
    assert "a later attempt of this training has begun" in said[0]
    assert layout.steps_present(root) == [10]


class Late(Disk):
    """The disk of a writer that stops before one of its operations, until `meanwhile` is over."""

    def __init__(self, before, meanwhile):
        self._before, self._meanwhile = before, meanwhile
        self.stopped = False

    def _stop(self, source, target):
        if not self.stopped and self._before(source, target):
            self.stopped = True
            self._meanwhile()

    def rename(self, source, target):
        self._stop(source, target)
        super().rename(source, target)

    def sync_directory(self, path):
        self._stop(path, path)
        super().sync_directory(path)


@pytest.mark.parametrize("before", [
    lambda source, target: source.name[0] == "." != target.name[0],
    lambda source, target: source.name[0] != "." == target.name[0],
    lambda source, target: source.name[0] == "." and any(source.parent.glob(".*-replaced")),
], ids=["its name", "the old one aside", "its name again"])  # fmt: skip
def test_a_late_writer_leaves_the_same_step_of_its_successor(tmp_path, before):
    """It goes on publishing when a later attempt has begun and has published that step."""

    def succeed():
        layout.disown_leftovers(tmp_path)
        assert make_engine(tmp_path).save(20, state_of(21))

    said = []
    store(tmp_path, 10)
    damage(store(tmp_path, 20), "flip")  # so that it is replaced
    disk = Late(before, succeed)
    make_engine(tmp_path, said, disk=disk).save(20, state_of(20))
    assert disk.stopped
    assert "WARNING: no checkpoint at step 20: " in said[0]
    assert layout.steps_present(tmp_path) == [20, 10]
    found = make_engine(tmp_path).load(read_state)
    assert found is not None and found["step"] == 21


def test_what_was_being_replaced_when_the_node_died_is_there_again(tmp_path):
    class Dies(Disk):
        def rename(self, source, target):
            if source.name[0] == "." and any(tmp_path.glob(".*-replaced")):
                raise SystemExit
            super().rename(source, target)

    store(tmp_path, 10)
    store(tmp_path, 20)
    with pytest.raises(SystemExit):
        make_engine(tmp_path, disk=Dies()).save(20, state_of(21))
    assert layout.steps_present(tmp_path) == [10]
    layout.disown_leftovers(tmp_path)
    assert newest_step(tmp_path) == 20


@pytest.mark.parametrize("step", [20, 3000])
def test_a_late_writer_removes_no_checkpoint_of_its_successor(tmp_path, step):
    """Its successor went on from an earlier step, or has written anew what was damaged."""
    for each in (1000, 2000, 3000):
        store(tmp_path, each, keep=Keep(3))
    damage(tmp_path / layout.directory_name(3000), "flip")
    disk = Late(lambda source, _: source == tmp_path, lambda: store(tmp_path, step))
    late = make_engine(tmp_path, disk=disk)
    assert late.load(read_state)["step"] == 2000
    assert late.save(2010, state_of(2010))
    assert disk.stopped
    assert step in layout.steps_present(tmp_path)
    assert newest_step(tmp_path) == max(step, 2010)


def test_a_script_that_only_reads_leaves_a_running_training_alone(tmp_path):
    class Read(Disk):
        def rename(self, source, target):
            assert newest_step(tmp_path) == 10
            super().rename(source, target)

    store(tmp_path, 10)
    store(tmp_path, 20, Read())
    assert newest_step(tmp_path) == 20


def test_a_failed_save_does_not_spoil_the_next_of_that_step(tmp_path):
    class Failing(Disk):
        fails = True

        def sync(self, descriptor):
            if self.fails:
                raise OSError("no sync")

        def remove(self, path):
            if self.fails:
                raise OSError("no removal")
            super().remove(path)

    said = []
    disk = Failing()
    engine = make_engine(tmp_path, said, disk=disk)
    engine.save(10, state_of(10))
    assert (engine.wait(), len(said)) == (False, 1)
    disk.fails = False
    engine.save(10, state_of(10))
    assert engine.wait()
    assert newest_step(tmp_path) == 10


def test_an_older_layout_is_refused_in_one_sentence(tmp_path):
    marker = store(tmp_path, 20) / layout.MARKER_FILE
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "schema_version": 1}))
    with pytest.raises(UserFault, match=r"step-000000000020 has the layout version 1, and this"):
        newest_step(tmp_path)


def test_at_least_two_checkpoints_are_kept_and_some_forever(tmp_path):
    for step in (10, 20, 30):
        store(tmp_path, step, keep=Keep(1))
    assert layout.steps_present(tmp_path) == [30, 20]
    for step in (40, 50, 60, 70, 80):
        store(tmp_path, step, keep=Keep(2, every_steps=30))
    assert layout.steps_present(tmp_path) == [80, 70, 60, 40]  # 40: the first after 30
    kept = [layout.read_marker(tmp_path / layout.directory_name(n)).kept_for_ever for n in (60, 70)]
    assert kept == [True, False]


def test_checkpoints_kept_forever_are_not_read_at_each_save(tmp_path, monkeypatch):
    read, read_marker = [], layout.read_marker

    def noted(directory):
        read.append(directory.name)
        return read_marker(directory)

    for step in range(10, 60, 10):
        store(tmp_path, step, keep=Keep(2, every_steps=10))
    monkeypatch.setattr(layout, "read_marker", noted)
    store(tmp_path, 60, keep=Keep(2, every_steps=10))
    assert layout.steps_present(tmp_path) == [60, 50, 40, 30, 20, 10]
    assert read == [layout.directory_name(60)]


def test_another_data_order_is_refused(tmp_path):
    check_settings({**SETTINGS, "learners": 4}, {**SETTINGS, "learners": 2}, tmp_path)
    with pytest.raises(UserFault, match=r"training\.batch_size 10, but this attempt has 20"):
        check_settings(SETTINGS, {**SETTINGS, "batch_size": 20}, tmp_path)


def test_a_range_is_read_into_existing_memory(tmp_path):
    values = torch.arange(5_000_000, dtype=torch.float32)  # several blocks
    make_engine(tmp_path).save(1, {"a": Pieces((5, 1_000_000), torch.float32, [(0, values)])})

    def use(loaded):
        stored = loaded.tree()["a"]
        assert (stored.shape, stored.dtype) == ((5, 1_000_000), torch.float32)
        for start, count in ((0, 5_000_000), (1_048_570, 1_048_590), (7, 3), (4_999_999, 1)):
            out = torch.zeros(count)
            stored.read_into(out, start)
            assert torch.equal(out, values[start : start + count])
        with pytest.raises(ValueError, match="needs contiguous memory"):
            stored.read_into(torch.zeros(3, dtype=torch.float64), 0)
        with pytest.raises(ValueError, match="has 20000000 bytes"):
            stored.read_into(torch.zeros(3), 4_999_998)

    make_engine(tmp_path).load(use)


def test_pieces_that_do_not_cover_a_tensor_make_no_checkpoint(tmp_path, monkeypatch):
    store(tmp_path, 1)
    hole = Pieces((9,), torch.bfloat16, [(n, torch.ones(4).bfloat16()) for n in (0, 5)])
    said = []
    make_engine(tmp_path, said).save(2, {"a": hole})
    words = "WARNING: no checkpoint at step 2: the learners have 8 of 18 bytes of ['a']"
    assert said == [words]
    assert [path.name for path in tmp_path.iterdir()] == [layout.directory_name(1)]

    monkeypatch.setattr("learner.checkpoint_files.publish._check_covered", lambda *_: None)
    make_engine(tmp_path).save(2, {"a": hole})
    assert newest_step(tmp_path, said) == 1
    assert "['a'] has only its first 8 of 18 bytes" in said[1]


def test_the_program_in_the_docs_reads_a_checkpoint_without_dlctl(tmp_path):
    page = (REPOSITORY / "docs" / "recover.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert program is not None
    assert len(program[1].strip().splitlines()) <= 10
    directory = store(tmp_path, 10)
    ending = "\nprint(sorted((k, v.shape, float(v.sum())) for k, v in tensors.items()))"
    done = subprocess.run(
        [sys.executable, "-c", program[1] + ending, str(directory)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stderr == ""
    expected = [("['big']", (LARGE,), LARGE * 10.0), ("['weights']", (50,), 500.0)]
    assert done.stdout.strip() == str(expected)
