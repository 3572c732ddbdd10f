"""What the tests of checkpoints share: a small state, and disks that fail."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner.checkpoint.engine import CheckpointEngine, Keep
from learner.checkpoint.load import Loaded, filled
from learner.checkpoint.writer_process import WriterProcess
from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk
from learner.exchange.single import SingleExchange

SETTINGS = {"seed": 5, "batch_size": 10, "samples": 47}
LARGE = 100_001
"""Elements of a tensor that is written past HDF5, with an odd end."""


def make_engine(
    root: Path,
    lines: list[str] | None = None,
    *,
    disk: Disk | None = None,
    writer: WriterProcess | None = None,
    keep: Keep | None = None,
) -> CheckpointEngine:
    say = print if lines is None else lines.append
    os.makedirs(root.parent, exist_ok=True)  # noqa: PTH103 - where Path is made to fail
    return CheckpointEngine(root, SingleExchange(), say, keep, writer, disk)


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((50,), step), "big": torch.full((LARGE,), step)}


def store(root: Path, step: int, disk: Disk | None = None, keep: Keep | None = None) -> Path:
    make_engine(root, disk=disk, keep=keep).save(step, state_of(step), SETTINGS)
    return root / layout.directory_name(step)


def read_state(loaded: Loaded) -> Any:
    return filled(loaded.tree())


def newest_step(root: Path, lines: list[str] | None = None) -> int | None:
    """Return the step of the newest checkpoint, having compared all its content."""
    state = make_engine(root, lines).load(read_state)
    if state is None:
        return None
    assert same(state, state_of(state["step"]))
    return int(state["step"])


def same(a: Any, b: Any) -> bool:
    """Return whether two states are equal in every bit and every type."""
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


class PowerLoss(BaseException):
    pass


class FailingDisk(Disk):
    """Fails at the n-th thing done to the disk, and ever after, as if the power had gone."""

    def __init__(self, allowed: int, error: type[BaseException], *, torn: bool = False) -> None:
        self.allowed = allowed
        self.error = error
        self.torn = torn

    def _may(self, path: Path | None = None) -> None:
        self.allowed -= 1
        if self.allowed < 0:
            if self.torn and path is not None and path.is_file():
                path.write_bytes(path.read_bytes()[:-7])
            raise self.error("no more")

    def make_directory(self, path: Path) -> None:
        self._may(path)
        super().make_directory(path)

    def create_share(self, path: Path, pieces: Sequence[tuple[str, Any]]) -> list[int]:
        self._may(path)
        offsets = super().create_share(path, pieces)
        self._may(path)
        return offsets

    def reserve(self, descriptor: int, size_bytes: int) -> None:
        self._may()
        super().reserve(descriptor, size_bytes)

    def write_at(self, descriptor: int, data: memoryview, offset_bytes: int) -> None:
        self._may()
        super().write_at(descriptor, data, offset_bytes)

    def write_file(self, path: Path, content: bytes) -> None:
        self._may(path)
        super().write_file(path, content)
        self._may(path)

    def sync(self, descriptor: int) -> None:
        self._may()
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self._may(path)
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._may(target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._may(path)
        super().remove(path)
