"""Uploads of large folders: each content once, on from where an interrupted one ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from faulty_proxy import faulty_proxy
from ssh_servers import block_behind

from dlctl.errors import TransferError
from dlctl.files import contents
from dlctl.files.site_folders import damaged
from dlctl.files.upload import Tree, upload
from dlctl.request.bundle import collect
from dlctl.transport.local import LocalTransport
from dlctl.transport.script import ScriptProcess

over_ssh = pytest.mark.parametrize("transport", ["ssh", "openssh"], indirect=True)
BIG_BYTES = contents.ALONE_BYTES + 4_321_000
PROGRAM = """\
import os, signal, sys
from pathlib import Path
from dlctl.files.upload import Tree, upload
from dlctl.request.bundle import collect
from dlctl.transport.local import LocalTransport

def on_progress(done_bytes, total_bytes):
    if done_bytes >= int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

bundle = collect(Path(sys.argv[3]))
tree = Tree(f"store/{bundle.digest}", bundle.entries, repairs=True)
upload(LocalTransport(), sys.argv[2], [tree], on_progress=on_progress)
"""


@pytest.fixture
def sent(monkeypatch):
    """The sizes of what is written to sites."""
    sizes: list[int] = []
    start = ScriptProcess.__init__

    def count(process, streams, *more):
        write = streams.write
        streams.write = lambda data, timeout_s: (sizes.append(len(data)), write(data, timeout_s))
        start(process, streams, *more)

    monkeypatch.setattr(ScriptProcess, "__init__", count)
    return sizes


@pytest.fixture
def folder(tmp_path):
    """A large file, some of moderate size, two of them equal, and small ones."""
    folder = tmp_path / "mine"
    (folder / "deep").mkdir(parents=True)
    (folder / "big é.bin").write_bytes(os.urandom(BIG_BYTES))
    for n in range(3):
        (folder / f"deep/{n}").write_bytes(os.urandom(200_000))
    (folder / "twin").write_bytes((folder / "deep/0").read_bytes())
    (folder / "twin").chmod(0o755)
    (folder / "train.py").write_text("print()\n")
    (folder / "link").symlink_to("train.py")
    return folder


def send(transport, root, folder, **more):
    bundle = collect(folder)
    target = f"store/{bundle.digest}"
    upload(transport, str(root), [Tree(target, bundle.entries, repairs=True)], **more)
    assert damaged(transport, str(root), [target]) == set()
    return root / target


def assert_same(there, folder):
    for path in folder.rglob("*"):
        other = there / path.relative_to(folder)
        assert other.is_symlink() == path.is_symlink()
        if path.is_file():
            assert other.read_bytes() == path.read_bytes()
            assert os.access(other, os.X_OK) == os.access(path, os.X_OK)


def leftovers(root):
    return [path.name for path in (root / contents.FOLDER).iterdir()]


@pytest.mark.first("ssh", "local")
def test_a_large_folder_arrives_whole(transport, folder, tmp_path):
    seen = []
    root = tmp_path / "ro ot's"
    there = send(transport, root, folder, on_progress=lambda *n: seen.append(n))
    assert_same(there, folder)
    assert leftovers(root) == []
    assert seen[-1][0] == seen[-1][1] >= BIG_BYTES + 600_000


@pytest.mark.first("ssh")
@over_ssh
def test_of_a_changed_folder_only_what_is_new_is_sent(transport, folder, tmp_path, sent):
    send(transport, tmp_path / "root", folder)
    (folder / "deep/1").write_bytes(os.urandom(300_000))
    (folder / "train.py").write_text("print(2)\n")
    sent.clear()
    there = send(transport, tmp_path / "root", folder)
    assert sum(sent) < 400_000
    assert_same(there, folder)
    assert leftovers(tmp_path / "root") == []


@pytest.mark.first("0.3-openssh")
@over_ssh
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_killed_upload_goes_on_where_it_was(transport, folder, tmp_path, sent, share):
    limit_bytes = int(BIG_BYTES * share)
    root = tmp_path / "root"
    argv = [sys.executable, "-c", PROGRAM, str(limit_bytes), str(root), str(folder)]
    assert subprocess.run(argv, timeout=60).returncode == -signal.SIGKILL
    assert list((root / "store").iterdir()) == [root / contents.FOLDER]
    there = send(transport, root, folder)
    assert_same(there, folder)
    assert sum(sent) < BIG_BYTES + 700_000 - limit_bytes + 5_000_000
    assert leftovers(root) == []


def test_a_lost_connection_is_opened_again(ssh_setup, folder, tmp_path):

    def cut_once(done_bytes, total_bytes):
        if done_bytes > BIG_BYTES // 2 and not proxy.cuts:
            proxy.cut_after_bytes = 0  # with the next answer, such as a window

    with (
        faulty_proxy(ssh_setup.servers["plain"].port) as proxy,
        ssh_setup.open("cut", config=block_behind(ssh_setup, "cut", proxy)) as transport,
    ):
        there = send(transport, tmp_path / "root", folder, on_progress=cut_once)
    assert proxy.cuts == 1
    assert_same(there, folder)


@pytest.mark.first("ssh")
@over_ssh
def test_a_part_that_was_damaged_is_sent_again(transport, folder, tmp_path):
    root = tmp_path / "root"
    argv = [sys.executable, "-c", PROGRAM, str(BIG_BYTES // 2), str(root), str(folder)]
    subprocess.run(argv, timeout=60)
    (part,) = (root / contents.FOLDER).glob("*.*")
    with part.open("r+b") as file:
        file.write(b"damage")
    assert_same(send(transport, root, folder), folder)


@pytest.mark.first("openssh")
@over_ssh
def test_a_content_of_another_folder_that_was_changed_there_is_not_taken(
    transport, folder, tmp_path
):
    first = send(transport, tmp_path / "root", folder)
    with (first / "big é.bin").open("r+b") as file:
        file.write(b"damage")
    (folder / "train.py").write_text("print(2)\n")
    assert_same(send(transport, tmp_path / "root", folder), folder)


def test_a_file_that_changes_while_it_is_sent_is_refused(folder, tmp_path):
    entries = collect(folder).entries
    with (folder / "big é.bin").open("ab") as file:
        file.write(b"more")
    with pytest.raises(TransferError, match="changed while it was sent"):
        upload(LocalTransport(), str(tmp_path / "root"), [Tree("store/x", entries, repairs=True)])
    assert not (tmp_path / "root/store/x").exists()


def test_what_another_upload_removes_at_the_same_time_is_no_failure(folder, tmp_path, monkeypatch):
    """`mv` puts what came second into what came first, where it is removed: `find` may see it."""
    there = send(LocalTransport(), tmp_path / "root", folder)
    (there / "train.py").write_text("print(2)\n")
    (there / "second-1").mkdir()
    program = tmp_path / "bin/find"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\nif [ -d second-1 ]; then\n    rmdir second-1\n"
        "    echo 'find: ./second-1: No such file or directory' >&2\n    exit 1\nfi\n"
        f'exec {shutil.which("find")} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    assert_same(send(LocalTransport(), tmp_path / "root", folder), folder)
    assert not (there / "second-1").exists()
