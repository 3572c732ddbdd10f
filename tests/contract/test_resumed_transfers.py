"""Transfers that are killed, cut off, or meet a file that changes: nothing is sent twice."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy
from ssh_servers import block_behind

from dlctl.errors import TransferError, TransportError
from dlctl.files import contents, target
from dlctl.files.download import download
from dlctl.files.large import CHUNK_BYTES
from dlctl.files.site_folders import damaged
from dlctl.files.target import PARTIAL
from dlctl.files.upload import Tree, upload
from dlctl.request.bundle import collect
from dlctl.transport.local import LocalTransport
from dlctl.transport.script import ScriptProcess

over_ssh = pytest.mark.parametrize("transport", ["ssh", "openssh"], indirect=True)
SIZE_BYTES = 3 * CHUNK_BYTES + 12345
FETCHES = """\
import os, signal, sys
from pathlib import Path
from dlctl.files.download import download
from dlctl.transport.local import LocalTransport

limit_bytes, base, here, digest = int(sys.argv[1]), *sys.argv[2:5]

def on_progress(done_bytes, total_bytes):
    if done_bytes >= limit_bytes:
        os.kill(os.getpid(), signal.SIGKILL)

download(LocalTransport(), base, {"big": digest} if digest else ["big"], Path(here), on_progress)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "big").write_bytes(os.urandom(SIZE_BYTES))
    return folder


@pytest.fixture
def received(monkeypatch):
    """The sizes of what comes from sites."""
    sizes: list[int] = []
    read = ScriptProcess.read_some

    def count(process, timeout_s):
        chunk = read(process, timeout_s)
        sizes.append(len(chunk))
        return chunk

    monkeypatch.setattr(ScriptProcess, "read_some", count)
    return sizes


@pytest.fixture
def made(tmp_path):
    """A folder of the site with large files, and the one here that they come into."""

    def make(**files):
        for name, content in files.items():
            (tmp_path / "site").mkdir(exist_ok=True)
            (tmp_path / "site" / name).write_bytes(content * SIZE_BYTES)
        (tmp_path / "site/small").write_bytes(b"s")
        return tmp_path / "site", tmp_path / "here"

    return make


def killed_after(limit_bytes, program, *words):
    """Run a transfer until it has moved so much, and kills itself."""
    argv = [sys.executable, "-c", program, str(limit_bytes), *map(str, words)]
    assert subprocess.run(argv, timeout=60).returncode == -signal.SIGKILL


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("is_known", [True, False], ids=["known sum", "the site's sum"])
@over_ssh
def test_a_killed_download_goes_on_where_it_was(transport, site, tmp_path, received, is_known):
    digest = digest_of(site / "big")
    limit_bytes = random.Random(is_known).randrange(SIZE_BYTES // 3, SIZE_BYTES - 1)
    killed_after(limit_bytes, FETCHES, site, tmp_path / "here", digest if is_known else "")
    assert not (tmp_path / "here/big").exists()
    wanted = {"big": digest} if is_known else ["big"]
    seen = []
    download(transport, str(site), wanted, tmp_path / "here", lambda *n: seen.append(n))
    assert digest_of(tmp_path / "here/big") == digest
    assert sum(received) <= SIZE_BYTES - limit_bytes + CHUNK_BYTES + 10_000
    assert seen[0][0] >= limit_bytes - CHUNK_BYTES
    assert seen[-1] == (SIZE_BYTES, SIZE_BYTES)
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["big"]


@pytest.mark.first("ssh")
@over_ssh
def test_a_beginning_that_was_damaged_here_is_sent_again(transport, site, tmp_path):
    digest = digest_of(site / "big")
    here = tmp_path / "here"
    for wanted in ({"big": digest}, ["big"]):
        known = digest if isinstance(wanted, dict) else ""
        killed_after(2 * CHUNK_BYTES + 9, FETCHES, site, here, known)
        (part,) = [p for p in (here / PARTIAL).iterdir() if p.suffix != ".note"]
        with part.open("r+b") as file:
            file.seek(100)
            file.write(b"what a power cut left")
        download(transport, str(site), wanted, here)
        assert digest_of(here / "big") == digest
        (here / "big").unlink()


@pytest.mark.first("ssh")
@over_ssh
def test_another_file_of_the_same_name_does_not_go_on(transport, made):
    base, here = made(big=b"1")
    killed_after(SIZE_BYTES // 2, FETCHES, base, here, "")
    (base / "big").write_bytes(b"2" * SIZE_BYTES)
    download(transport, str(base), ["big"], here)
    assert (here / "big").read_bytes() == b"2" * SIZE_BYTES


@pytest.mark.first("5")
@pytest.mark.parametrize("cut", [5, SIZE_BYTES // 2, SIZE_BYTES - 20_000])
def test_a_lost_connection_is_opened_again_in_mid_file(ssh_setup, site, tmp_path, cut):
    with (
        faulty_proxy(ssh_setup.servers["plain"].port) as proxy,
        ssh_setup.open("cut", config=block_behind(ssh_setup, "cut", proxy)) as transport,
    ):
        proxy.cut_after_bytes = 10_000 + cut  # of the connection, log-in and listing too
        download(transport, str(site), ["big"], tmp_path / "here")
        assert proxy.cuts == 1
        assert digest_of(tmp_path / "here/big") == digest_of(site / "big")
        assert proxy.served_bytes < SIZE_BYTES + 2 * CHUNK_BYTES
        proxy.is_dead = True
        with pytest.raises(TransportError) as caught:
            download(transport, str(site), ["big"], tmp_path / "there")
        assert caught.value.hint


@pytest.mark.first("ssh")
@over_ssh
def test_a_file_that_changes_meanwhile_comes_as_it_is_then(transport, made):
    base, here = made(big=b"1", other=b"o")
    changes = []

    def change(done_bytes, total_bytes):
        if done_bytes > CHUNK_BYTES and not changes:
            changes.append((base / "big").write_bytes(b"2" * (SIZE_BYTES // 2)))

    download(transport, str(base), ["big", "other", "small"], here, change)
    assert changes
    assert (here / "big").read_bytes() == b"2" * (SIZE_BYTES // 2)
    assert (here / "other").read_bytes() == b"o" * SIZE_BYTES


@pytest.mark.first("ssh")
@over_ssh
def test_what_is_removed_while_it_is_fetched_is_left_out_by_name(transport, made):
    base, here = made(big=b"1", other=b"1")

    def remove(done_bytes, total_bytes):
        if done_bytes > CHUNK_BYTES:
            (base / "big").unlink(missing_ok=True)

    left_out = {}
    download(transport, str(base), ["big", "other"], here, remove,
             on_left_out=left_out.__setitem__)  # fmt: skip
    assert left_out == {"big": "was removed while it was fetched"}
    assert [path.name for path in here.iterdir()] == ["other"]


@pytest.mark.slow
@over_ssh
def test_a_file_that_always_changes_is_left_out_by_name(transport, made, tmp_path):
    base, here = made(log=b"1")

    def grow(done_bytes, total_bytes):
        with (base / "log").open("ab") as file:
            file.write(b"more")

    left_out = []
    download(transport, str(base), ["log", "small"], here, grow,
             on_left_out=lambda *each: left_out.append(each))  # fmt: skip
    assert left_out == [("log", "changes while it is fetched, or can't be read")]
    assert [p.name for p in here.iterdir()] == ["small"]
    with pytest.raises(TransferError, match="log did not arrive: changes while it is fetched"):
        download(transport, str(base), ["log"], tmp_path / "there", grow)


@over_ssh
def test_what_the_disk_here_has_no_room_for_is_refused_first(transport, site, tmp_path, received):
    class Usage:
        free = 1000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target.shutil, "disk_usage", lambda path: Usage)
        with pytest.raises(TransferError, match=r"has 1.0 kB free, and \d+.\d MB are to come"):
            download(transport, str(site), ["big"], tmp_path / "here")
    assert sum(received) < 10_000


# Uploads of large folders: each content once ------------------------------------------------------

BIG_BYTES = contents.ALONE_BYTES + 4_321_000
SENDS = """\
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
    killed_after(limit_bytes, SENDS, root, folder)
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
    killed_after(BIG_BYTES // 2, SENDS, root, folder)
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
