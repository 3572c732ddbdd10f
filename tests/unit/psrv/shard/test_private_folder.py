"""Short-lived folders in shared memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from psrv.shard.private_folder import temporary_folder


def killed_in_it(where: Path) -> None:
    """Make a folder in a child that is killed before it removes the folder."""
    child = os.fork()
    if not child:
        with temporary_folder(where, "name") as folder:
            (folder / "file").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_leftovers_of_dead_processes_are_removed_and_no_others(tmp_path):
    (tmp_path / "name-of-another").mkdir()
    (tmp_path / "name.file").touch()
    with temporary_folder(tmp_path, "name") as living:
        (living / "file").touch()
        killed_in_it(tmp_path)
        assert len(list(tmp_path.glob("name.*/file"))) == 2
        with temporary_folder(tmp_path, "name") as folder:
            assert {path.parent for path in tmp_path.glob("name.*/file")} == {living}
            assert folder.is_dir()
        assert not folder.exists() and (living / "file").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"name-of-another", "name.file"}


def test_a_folder_that_another_process_removes_is_made_again(tmp_path, monkeypatch):
    """Between its creation and its lock a folder has no owner."""
    made: list[Path] = []
    mkdtemp = "psrv.shard.private_folder.tempfile.mkdtemp"

    def make_and_lose(prefix: str, dir: Path) -> str:  # noqa: A002 - as mkdtemp names it
        made.append(dir / f"{prefix}{len(made)}")
        made[-1].mkdir()
        if len(made) == 1:
            made[-1].rmdir()
        return str(made[-1])

    monkeypatch.setattr(mkdtemp, make_and_lose)
    with temporary_folder(tmp_path, "name") as folder:
        assert [folder] == made[1:] == list(tmp_path.iterdir())


def test_a_folder_is_made_on_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr("psrv.shard.private_folder.fcntl.flock", refuse)
    with temporary_folder(tmp_path, "name") as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_errors_inside_are_raised_and_the_folder_is_removed(tmp_path):
    with pytest.raises(OSError, match="mine"), temporary_folder(tmp_path, "name"):
        raise OSError("mine")
    assert list(tmp_path.iterdir()) == []
