from __future__ import annotations

import collections
import json
import math
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dlctl.contract import CheckpointPolicy
from learner.checkpoint import layout, random_states
from learner.checkpoint.keeper import CheckpointKeeper, Position, Trained
from learner.checkpoint.layout import Disk
from learner.checkpoint.load import check_settings, load_newest
from learner.checkpoint.save import prune, remove_leftovers, save
from learner.checkpoint.tree import pack, unpack
from learner.exchange.single import SingleExchange
from learner.faults import UserFault
from learner.model_file import Parts
from learner.schedule import UserSchedule

SETTINGS = {"learners": 1, "seed": 5, "batch_size": 10, "samples": 47}
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def store(root: Path, step: int, disk: Disk | None = None) -> Path:
    state = {"step": step, "weights": torch.full((50,), float(step))}
    return save(root, step, pack(state), SETTINGS, disk or Disk())


def newest_step(root: Path) -> int | None:
    loaded = load_newest(root, lambda text: None)
    if loaded is None:
        return None
    state = unpack(loaded.packed)
    assert torch.equal(state["weights"], torch.full((50,), float(state["step"])))
    return int(state["step"])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and [*a] == [*b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        pairs = zip(a, b, strict=True)
        return type(a) is type(b) and all(same(x, y) for x, y in pairs)
    return type(a) is type(b) and (a == b or (a != a and b != b))


def test_any_state_comes_back_exactly(tmp_path: Path) -> None:
    state = {
        "tensors": {str(d): (torch.arange(6).reshape(2, 3) % 2).to(d) for d in DTYPES},
        "odd": [torch.tensor(1.5), torch.empty(0, 3), torch.arange(6.0).reshape(2, 3).t()],
        0: {"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "step": torch.tensor(3.0), "none": None},
        "numbers": [math.pi, -0.0, math.inf, math.nan, 2**80, True, "ä\n", b"\x00\xff"],
        "arrays": [np.arange(3, dtype=np.uint32), np.array([True, False]), np.float64(0.1)],
        "counter": collections.Counter({30: 1, 80: 1}),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }
    packed = pack(state)
    Disk().write_state(tmp_path / "state.h5", packed)
    again = unpack(layout.read_state(tmp_path / "state.h5"))
    assert same(state, again)
    assert math.copysign(1, again["numbers"][1]) == -1


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    with pytest.raises(UserFault, match=r"state\['schedule'\]\['f'\].*type function"):
        pack({"schedule": {"f": lambda step: step}})


class FailingDisk(Disk):
    """Fails at the n-th thing done to the disk, and ever after, as if the power had gone."""

    def __init__(self, allowed: int, error: type[BaseException], *, torn: bool = False) -> None:
        self.allowed = allowed
        self.error = error
        self.torn = torn

    def _may(self, path: Path) -> None:
        self.allowed -= 1
        if self.allowed < 0:
            if self.torn and path.is_file():
                path.write_bytes(path.read_bytes()[:-7])
            raise self.error("no more")

    def make_directory(self, path: Path) -> None:
        self._may(path)
        super().make_directory(path)

    def write_state(self, path: Path, packed: Any) -> None:
        self._may(path)
        super().write_state(path, packed)
        self._may(path)

    def record(self, path: Path) -> layout.FileRecord:
        self._may(path)
        return super().record(path)

    def write_marker(self, path: Path, marker: layout.Marker) -> None:
        self._may(path)
        super().write_marker(path, marker)
        self._may(path)

    def sync_directory(self, path: Path) -> None:
        self._may(path)
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._may(target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._may(path)
        super().remove(path)


class PowerLoss(BaseException):
    pass


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_a_crash_at_every_write_leaves_a_whole_checkpoint(
    tmp_path: Path, torn: bool, replace: bool
) -> None:
    outcomes = set()
    for allowed in range(16):
        root = tmp_path / str(allowed)
        for step in (10, 20):
            store(root, step)
        if replace:  # a damaged one has the name that the new one gets
            (store(root, 30) / layout.MARKER_FILE).unlink()
        disk = FailingDisk(allowed, PowerLoss, torn=torn)
        try:
            store(root, 30, disk)
            prune(root, 30, 2, disk)
        except PowerLoss:
            outcomes.add("crashed")
        else:
            outcomes.add("done")
        assert newest_step(root) in (20, 30)
        remove_leftovers(root, Disk())
        store(root, 40)
        prune(root, 40, 2, Disk())
        assert newest_step(root) == 40
        assert len(list(root.iterdir())) == 2
    assert outcomes == {"crashed", "done"}


@pytest.mark.parametrize("allowed", range(7))
def test_a_full_disk_leaves_the_old_ones_and_nothing_else(tmp_path: Path, allowed: int) -> None:
    class Full(FailingDisk):
        def remove(self, path: Path) -> None:
            Disk().remove(path)

    store(tmp_path, 10)
    with pytest.raises(OSError, match="no more"):
        store(tmp_path, 20, Full(allowed, OSError))
    assert newest_step(tmp_path) == 10
    assert [path.name for path in tmp_path.iterdir()] == [layout.directory_name(10)]


def test_a_really_full_disk_is_an_os_error(tmp_path: Path) -> None:
    """HDF5 itself meets the limit; the process goes on and ends without a crash."""
    program = f"""
import resource, signal
from pathlib import Path
import torch
from learner.checkpoint.layout import Disk
from learner.checkpoint.save import save
from learner.checkpoint.tree import pack
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
root = Path({str(tmp_path)!r})
save(root, 1, pack({{"a": torch.ones(10)}}), {SETTINGS}, Disk())
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    save(root, 2, pack({{"a": torch.ones(500_000)}}), {SETTINGS}, Disk())
except OSError as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
save(root, 3, pack({{"a": torch.ones(500_000)}}), {SETTINGS}, Disk())
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:")
    assert layout.steps_present(tmp_path) == [3, 1]
    assert not list(tmp_path.glob(".tmp-*"))


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
import torch
from learner.checkpoint.layout import Disk
from learner.checkpoint.save import prune, save
from learner.checkpoint.tree import pack
root = Path({str(tmp_path)!r})
for step in range(1, 10_000):
    state = {{"step": step, "weights": torch.full((50,), float(step)), "b": torch.ones(300_000)}}
    save(root, step, pack(state), {SETTINGS}, Disk())
    prune(root, step, 2, Disk())
    print(step, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in process.stdout if line.endswith(b"\n")]
    assert newest_step(tmp_path) in (seen[-1], seen[-1] + 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "no marker", "bad marker", "no state"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, damage: str) -> None:
    store(tmp_path, 10)
    directory = store(tmp_path, 20)
    state, marker = directory / layout.STATE_FILE, directory / layout.MARKER_FILE
    content = bytearray(state.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        state.write_bytes(content)
    elif damage == "cut":
        state.write_bytes(content[:-1])
    elif damage == "no marker":
        marker.unlink()
    elif damage == "bad marker":
        marker.write_text("{")
    else:
        state.unlink()
    warnings: list[str] = []
    loaded = load_newest(tmp_path, warnings.append)
    assert loaded is not None
    assert loaded.marker.step == 10
    assert len(warnings) == 1
    assert layout.directory_name(20) in warnings[0]


def test_at_least_two_are_kept_and_only_newer_ones_push_out(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        store(tmp_path, step)
        prune(tmp_path, step, 1, Disk())
    assert layout.steps_present(tmp_path) == [30, 20]


def test_nothing_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "none", lambda text: None) is None


def test_another_data_order_is_refused(tmp_path: Path) -> None:
    check_settings(SETTINGS, dict(SETTINGS), tmp_path)
    with pytest.raises(UserFault, match=r"training\.batch_size 10, and this attempt has 20"):
        check_settings(SETTINGS, {**SETTINGS, "batch_size": 20}, tmp_path)


@pytest.mark.parametrize(
    ("policy", "steps", "epochs"),
    [
        (CheckpointPolicy(), [], [1, 2, 3, 4]),
        (CheckpointPolicy(every_steps=2), [2, 4], []),
        (CheckpointPolicy(every_epochs=3), [], [3]),
        (CheckpointPolicy(every_s=60), [], []),
    ],
)
def test_when_a_checkpoint_is_due(
    tmp_path: Path, policy: CheckpointPolicy, steps: list[int], epochs: list[int]
) -> None:
    now = [0.0]
    keeper = CheckpointKeeper(
        tmp_path, policy, SETTINGS, SingleExchange(), print, clock=lambda: now[0]
    )
    assert [n for n in range(1, 5) if keeper.due_after_step(n)] == steps
    assert [n for n in range(1, 5) if keeper.due_after_epoch(n)] == epochs
    now[0] = 61
    assert keeper.overdue() is (policy.every_s is not None)


def make_trained() -> Trained:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    model[0].register_buffer("hidden", torch.zeros(2), persistent=False)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = UserSchedule(torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5]))
    parts = Parts(model, optimizer, torch.nn.MSELoss(), [1])
    return Trained(parts, schedule, torch.device("cpu"))


def test_a_keeper_brings_everything_back(tmp_path: Path) -> None:
    said: list[str] = []

    def keeper(disk: Disk | None = None) -> CheckpointKeeper:
        policy = CheckpointPolicy()
        return CheckpointKeeper(tmp_path, policy, SETTINGS, SingleExchange(), said.append, disk)

    trained = make_trained()
    model, optimizer = trained.parts.model, trained.parts.optimizer
    model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    trained.schedule.after_epoch(1.0)
    model[0].hidden.fill_(7.0)
    first = next(model.parameters())
    optimizer.state[first]["exp_avg"] = torch.full((4, 3), 1 / 3)  # wider than its parameter
    position = Position(1, 2, 3, {"loss": 0.1}, 20, [{"epoch": 1, "loss": 0.3}])
    assert keeper().save(trained, position)
    drawn = [random.random(), np.random.rand(), torch.rand(1).item()]

    other = make_trained()
    assert keeper().load(other) == position
    assert [random.random(), np.random.rand(), torch.rand(1).item()] == drawn
    assert same(dict(model.state_dict()), dict(other.parts.model.state_dict()))
    assert same(optimizer.state_dict(), other.parts.optimizer.state_dict())
    assert same(trained.schedule.state_dict(), other.schedule.state_dict())
    assert other.parts.model[0].hidden.tolist() == [7.0, 7.0]

    position.step = 4
    assert not keeper(FailingDisk(2, OSError)).save(trained, position)
    assert "WARNING: no checkpoint at step 4" in said[-1]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    def keeper() -> CheckpointKeeper:
        return CheckpointKeeper(tmp_path, CheckpointPolicy(), SETTINGS, SingleExchange(), print)

    keeper().save(make_trained(), Position(step=1))
    other = make_trained()
    other.parts.model.append(torch.nn.Linear(4, 1))
    with pytest.raises(UserFault, match=r"another model: 2\.weight is missing"):
        keeper().load(other)


def test_validation_leaves_the_random_states() -> None:
    random_states.seed_all(3, 1)
    expected = [random.random(), np.random.rand(), torch.rand(1).item()]
    random_states.seed_all(3, 1)
    with random_states.preserved(torch.device("cpu")):
        torch.rand(5)
        random.random()
        np.random.rand()
    assert [random.random(), np.random.rand(), torch.rand(1).item()] == expected
    random_states.seed_all(3, 2)
    assert torch.rand(1).item() != expected[2]


def test_the_marker_is_readable_json(tmp_path: Path) -> None:
    marker = json.loads((store(tmp_path, 10) / layout.MARKER_FILE).read_text())
    assert marker["step"] == 10
    assert marker["settings"] == SETTINGS
    assert marker["files"][layout.STATE_FILE]["size_bytes"] > 0
