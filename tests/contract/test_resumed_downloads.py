"""Downloads that are killed, cut off, or meet a file that changes: nothing is sent twice."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy
from ssh_servers import block_behind

from dlctl.errors import TransferError, TransportError
from dlctl.files import target
from dlctl.files.download import download
from dlctl.files.large import CHUNK_BYTES
from dlctl.files.target import PARTIAL
from dlctl.transport.script import ScriptProcess

over_ssh = pytest.mark.parametrize("transport", ["ssh", "openssh"], indirect=True)
SIZE_BYTES = 3 * CHUNK_BYTES + 12345
PROGRAM = """\
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


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("is_known", [True, False], ids=["known sum", "the site's sum"])
@over_ssh
def test_a_killed_download_goes_on_where_it_was(transport, site, tmp_path, received, is_known):
    digest = digest_of(site / "big")
    limit_bytes = random.Random(is_known).randrange(SIZE_BYTES // 3, SIZE_BYTES - 1)
    argv = [sys.executable, "-c", PROGRAM, str(limit_bytes), str(site), str(tmp_path / "here")]
    killed = subprocess.run([*argv, digest if is_known else ""], timeout=60)
    assert killed.returncode == -signal.SIGKILL
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
        argv = [sys.executable, "-c", PROGRAM, str(2 * CHUNK_BYTES + 9), str(site), str(here)]
        subprocess.run([*argv, digest if isinstance(wanted, dict) else ""], timeout=60)
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
    argv = [sys.executable, "-c", PROGRAM, str(SIZE_BYTES // 2), str(base), str(here), ""]
    assert subprocess.run(argv, timeout=60).returncode == -signal.SIGKILL
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
