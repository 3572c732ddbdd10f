"""What is on the disk when: a machine that loses its power keeps only what was synced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from checkpoint_tools import newest_step, store

from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk

JSON = ("share-0.json", "state.json", "complete.json")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What this process does to the disk from now on, in order, with the last name of each path."""
    noted: list[tuple[str, str]] = []
    fsync, replace, rename, remove = os.fsync, Path.replace, Path.rename, Disk.remove

    def note_sync(descriptor: int) -> None:
        fsync(descriptor)
        noted.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))

    def note_replace(path: Path, target: Path) -> Path:
        noted.append(("name", Path(target).name))
        return replace(path, target)

    def note_rename(path: Path, target: Path) -> Path:
        noted.append(("name", Path(target).name))
        return rename(path, target)

    def note_remove(disk: Disk, path: Path) -> None:
        noted.append(("remove", path.name))
        remove(disk, path)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(Disk, "remove", note_remove)
    return noted


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, done: list[tuple[str, str]]
) -> None:
    root = tmp_path / "checkpoints"
    for step in (10, 20):
        store(root, step)
    done.clear()
    new = store(root, 30).name
    for name in JSON:
        assert done[done.index(("name", name)) - 1] == ("sync", f"{name}.part")
    parts = [item for item in done if item[1] in (*JSON, "share-0.h5", new, root.name)
             or item[1].startswith(layout.TEMPORARY_PREFIX)]  # fmt: skip
    folder = next(item for item in parts if item[1].startswith(layout.TEMPORARY_PREFIX))
    old = layout.replaced(root / folder[1], root / layout.directory_name(10)).name
    assert parts == [
        ("sync", "share-0.h5"), folder, ("name", "share-0.json"), ("name", "state.json"),
        ("name", "complete.json"), folder, ("name", new), ("sync", root.name), ("name", old),
        ("remove", old),
    ]  # fmt: skip


def test_a_removal_that_is_cut_off_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, 10)
    newer = store(tmp_path, 20)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        Disk().remove(newer)
    assert (newer / "share-0.h5").exists()
    assert newest_step(tmp_path) == 10
