"""Files to and from a site whose login node has BusyBox's programs alone."""

import os
import shlex
import shutil
import subprocess

import pytest

from dlctl.files import contents
from dlctl.files.download import download
from dlctl.files.upload import Tree, upload
from dlctl.request.bundle import collect
from dlctl.transport.local import LocalTransport

BUSYBOX = shutil.which("busybox")


class Interrupted(Exception):
    pass


@pytest.fixture
def bare(tmp_path, monkeypatch):
    if BUSYBOX is None:
        pytest.skip("no busybox: apt-get install busybox")
    folder = tmp_path / "bin"
    folder.mkdir()
    listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        (folder / name).symlink_to(BUSYBOX)

    class Bare(LocalTransport):
        def _open(self, command):
            command = command.replace("/bin/sh", f"{folder}/sh")
            return super()._open(f"PATH={folder} exec {folder}/sh -c {shlex.quote(command)}")

    transport = Bare()
    assert "busybox" in transport.run("tar --version 2>&1").text
    return transport


def test_a_folder_comes_and_goes_on_in_mid_file(bare, tmp_path):
    base, here = tmp_path / "site", tmp_path / "here"
    (base / "d").mkdir(parents=True)
    (base / "d/big").write_bytes(os.urandom(40_000_000))
    (base / "d/a b'c").write_text("x")
    (base / "d/link").symlink_to("big")

    def interrupt(done_bytes, total_bytes):
        if done_bytes > 25_000_000:
            raise Interrupted

    with pytest.raises(Interrupted):
        download(bare, str(base), ["d"], here, interrupt)
    seen = []
    download(bare, str(base), ["d"], here, lambda *n: seen.append(n))
    assert seen[0][0] >= 16_000_000
    for name in ("big", "a b'c", "link"):
        assert (here / "d" / name).read_bytes() == (base / "d" / name).read_bytes()


def test_a_large_folder_is_sent_by_its_contents(bare, tmp_path):
    mine, root = tmp_path / "mine", tmp_path / "root"
    mine.mkdir()
    for name, size_bytes in (("large", contents.ALONE_BYTES), ("moderate", 1_000_000)):
        (mine / name).write_bytes(os.urandom(size_bytes))
    for text in ("1", "2"):
        (mine / "train.py").write_text(text)
        bundle = collect(mine)
        upload(bare, str(root), [Tree(f"store/{bundle.digest}", bundle.entries, repairs=True)])
        for path in mine.iterdir():
            assert (root / "store" / bundle.digest / path.name).read_bytes() == path.read_bytes()
    assert list((root / contents.FOLDER).iterdir()) == []
