"""One learner's share as a file: its structure, and file systems with unusual writes."""

import errno
import fcntl
import io
import mmap
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from checkpoint_tools import newest_step, store

from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.share_format import LARGE_BYTES, PAGE_BYTES, Holes
from learner.checkpoint_files.share_writer import rest_sum, write_share


def pieces():
    """Return small, empty and large pieces; large ones begin on a page, as in a snapshot."""
    memory = np.frombuffer(mmap.mmap(-1, 8 * LARGE_BYTES), np.float32)
    memory[:] = np.arange(len(memory))
    half = len(memory) // 2
    small = [(f"{n}:0", np.full(n, n, np.int16)) for n in range(200)]
    return [*small[:100], ("200:0", memory[:half]), *small[100:], ("201:7", memory[half:-13])]


class Strange(Disk):
    """A disk that fails direct writes after a short one, like some stacked file systems."""

    def __init__(self, number):
        self.number = number
        self.direct = 0

    def write_at(self, descriptor, data, offset_bytes):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            self.direct += 1
            os.pwrite(descriptor, data[:PAGE_BYTES], offset_bytes)
            raise OSError(self.number, os.strerror(self.number))
        super().write_at(descriptor, data, offset_bytes)


@pytest.mark.parametrize("disk", [Disk(), Strange(errno.EINVAL)])
def test_a_share_holds_every_piece(tmp_path, disk):
    path, stored = tmp_path / "share-3.h5", pieces()
    record = write_share(path, 3, stored, disk)
    with h5py.File(path) as file:
        for name, array in stored:
            assert np.array_equal(file[name][()], array)
            assert file[name].dtype == array.dtype
    assert [piece.name for piece in record.pieces] == [name for name, _ in stored]
    large = [p.offset_bytes for p in record.pieces if p.name in ("200:0", "201:7")]
    assert [offset % PAGE_BYTES for offset in large] == [0, 0]
    assert rest_sum(path, record.size_bytes, record.pieces) == record.rest_crc32
    assert not isinstance(disk, Strange) or disk.direct <= 1  # not tried again after a failure


def test_any_other_error_of_a_direct_write_is_raised(tmp_path):
    disk = Strange(errno.EIO)
    try:
        write_share(tmp_path / "share-0.h5", 0, pieces(), disk)
    except OSError as error:
        assert error.errno == errno.EIO
    assert disk.direct <= 1


def test_a_sparse_file_in_memory_behaves_like_a_file():
    holes, plain = Holes(), io.BytesIO()
    generator = np.random.default_rng(5)
    for _ in range(300):
        offset, count = int(generator.integers(0, 400_000)), int(generator.integers(0, 90_000))
        data = generator.bytes(count)
        for file in (holes, plain):
            file.seek(offset)
            if count % 3 == 0:
                file.write(data)
        got, expected = bytearray(count), bytearray(count)
        assert holes.readinto(got) == plain.readinto(expected)
        assert got == expected
        assert holes.tell() == plain.tell()
    assert holes.seek(0, io.SEEK_END) == plain.seek(0, io.SEEK_END)
    content = bytearray(holes.size_bytes)
    for offset, block in holes.blocks():
        content[offset : offset + len(block)] = block
    assert content == plain.getvalue()
    holes.seek(10**12)
    holes.truncate()
    assert (holes.size_bytes, len(list(holes.blocks())) < 10) == (10**12, True)


JSON = ("share-0.json", "state.json", "complete.json")


@pytest.fixture
def done(monkeypatch):
    """What this process does to the disk from now on, in order, with the last name of each path."""
    noted = []
    fsync, replace, rename, remove = os.fsync, Path.replace, Path.rename, Disk.remove

    def note_sync(descriptor):
        fsync(descriptor)
        noted.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))

    def note_replace(path, target):
        noted.append(("name", Path(target).name))
        return replace(path, target)

    def note_rename(path, target):
        noted.append(("name", Path(target).name))
        return rename(path, target)

    def note_remove(disk, path):
        noted.append(("remove", path.name))
        remove(disk, path)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(Disk, "remove", note_remove)
    return noted


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, done):
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


def test_a_removal_that_is_cut_off_leaves_nothing_that_looks_whole(tmp_path, monkeypatch):
    store(tmp_path, 10)
    newer = store(tmp_path, 20)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        Disk().remove(newer)
    assert (newer / "share-0.h5").exists()
    assert newest_step(tmp_path) == 10
