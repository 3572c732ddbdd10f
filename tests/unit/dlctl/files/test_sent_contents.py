"""Contents that several uploads send at once: each tree gets what its folder holds."""

import hashlib
import os

import pytest

from dlctl.errors import TransferError
from dlctl.files import contents, upload
from dlctl.files.archive import Entry
from dlctl.files.upload import Tree
from dlctl.transport.local import LocalTransport

UMASK = 0o077


def entry_of(path, name="big"):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Entry(name, path, size_bytes=path.stat().st_size, sha256=digest)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / contents.FOLDER).mkdir(parents=True)
    return tmp_path / "root"


def test_two_that_send_the_same_content_do_not_mix_it(tmp_path, root, wait_until):
    """The second begins anew, sends as much as the first had sent, and is killed."""
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    entry = entry_of(tmp_path / "big")
    part = root / contents.FOLDER / f"{entry.sha256}.me"
    transport, sent = LocalTransport(), []

    def disturb(size_bytes):
        sent.append(size_bytes)
        if len(sent) > 1:
            return
        wait_until(lambda: part.exists() and part.stat().st_size == size_bytes, 60, what="a part")
        script = contents._script(str(root), entry.sha256, part.name, 0, entry.size_bytes, UMASK)
        other = transport.start(script)
        other.stdin.write(os.urandom(size_bytes))
        wait_until(lambda: part.stat().st_size == size_bytes, 60, what="the other's part")
        other.stdin.flush()
        other.kill()

    contents.send_alone(transport, str(root), entry.sha256, entry, 0, "me", disturb, UMASK)
    arrived = root / contents.FOLDER / entry.sha256
    assert hashlib.sha256(arrived.read_bytes()).hexdigest() == entry.sha256


def test_a_content_that_another_upload_has_taken_is_sent_again(tmp_path, root, monkeypatch):
    """Of two uploads that share a content, the one that ends first removes it from the waiting."""
    monkeypatch.setattr(contents, "WORTH_BYTES", 1)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_bytes(os.urandom(contents.LEAST_BYTES))
    entries = [entry_of(folder / name, name) for name in "ab"]
    deposit, taken = upload._deposit, []

    def deposit_and_lose(*args, **more):
        deposit(*args, **more)
        if not taken:
            taken.append(1)
            (root / contents.FOLDER / entries[0].sha256).unlink()

    monkeypatch.setattr(upload, "_deposit", deposit_and_lose)
    upload.upload(LocalTransport(), str(root), [Tree("store/x", entries)])
    for name in "ab":
        assert (root / "store/x" / name).read_bytes() == (folder / name).read_bytes()
    assert list((root / contents.FOLDER).iterdir()) == []


def test_a_content_that_is_asked_for_is_kept_for_another_week(tmp_path, root):
    (tmp_path / "big").write_bytes(b"1" * 100)
    entry = entry_of(tmp_path / "big")
    there = root / contents.FOLDER / entry.sha256
    there.write_bytes(b"1" * 100)
    os.utime(there, (there.stat().st_mtime - 6.5 * 86400,) * 2)
    before = there.stat().st_mtime
    told = contents.ask(LocalTransport(), str(root), {entry.sha256: entry}, "me", UMASK)
    assert told == ({entry.sha256}, {})
    assert there.stat().st_mtime > before + 6 * 86400


def test_many_contents_are_put_into_a_tree_and_removed(tmp_path, root, monkeypatch):
    """Half of them have two names."""
    monkeypatch.setattr(contents, "WORTH_BYTES", 1)
    monkeypatch.setattr(contents, "LEAST_BYTES", 1)
    folder = tmp_path / "mine"
    folder.mkdir()
    entries = []
    for n in range(200):
        file = folder / f"{n:040}"
        file.write_text(str(n // 2))
        entry = entry_of(file, f"it's/{n:040}")
        entries.append(Entry("it's", mode=0o755)) if not n else None
        entries.append(entry)
    upload.upload(LocalTransport(), str(root), [Tree("store/x", entries)])
    assert [(root / "store/x" / e.path).read_text() for e in entries[1:]] == [
        str(n // 2) for n in range(200)
    ]
    assert list((root / contents.FOLDER).iterdir()) == []


def test_a_full_disk_is_said_of_a_content_that_goes_alone(tmp_path, small_disk):
    small = small_disk("size=2m")
    (small / contents.FOLDER).mkdir(parents=True)
    (tmp_path / "big").write_bytes(os.urandom(4_000_000))
    entry = entry_of(tmp_path / "big")
    with pytest.raises(TransferError, match="the disk is full"):
        contents.send_alone(LocalTransport(), str(small), entry.sha256, entry, 0, "me",
                            lambda n: None, UMASK)  # fmt: skip
