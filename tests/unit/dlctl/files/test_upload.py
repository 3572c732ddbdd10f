from __future__ import annotations

import errno
import io
import tarfile
from pathlib import Path

import pytest

from dlctl.errors import TransferError
from dlctl.files.download import download
from dlctl.files.site_folders import last_telling_line
from dlctl.files.small_files import read_files, write_file
from dlctl.transport import Completed
from dlctl.transport.local import LocalTransport


class Site:
    """A site that lists one file, `f`, and sends what the test wants."""

    name = "evil"

    def __init__(self, members, cut=None):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for info, data in members:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        self.stdout = io.BytesIO(buffer.getvalue()[:cut])
        self.killed = False

    def run(self, script, **more):
        return Completed(0, b"f./f\0s3 644 1 then then\n\0", b"")

    def start(self, script, **more):
        self.mark = script.partition("%s %s\\n' ")[2].partition(" ")[0]
        return self

    def wait(self, timeout_s):
        return Completed(0, b"", f"\n{self.mark} \n".encode())

    def kill(self):
        self.killed = True


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_a_good_answer(tmp_path):
    paths = download(Site([(member("./f"), b"abc")]), "base", ["f"], tmp_path / "d")
    assert [p.read_bytes() for p in paths] == [b"abc"]


@pytest.mark.parametrize(
    "bad",
    [
        member("../f"),
        member("/f"),
        member("other"),
        member("f", tarfile.CHRTYPE),
        member("f", tarfile.FIFOTYPE),
        member("f", tarfile.SYMTYPE, "../../etc/passwd"),
        member("f", tarfile.SYMTYPE, "/etc/passwd"),
        member("f", tarfile.LNKTYPE, "/etc/passwd"),
    ],
    ids=lambda info: f"{info.name}-{info.type!r}-{info.linkname}",
)
def test_a_file_that_was_not_requested_is_refused(tmp_path, bad):
    site = Site([(bad, b"")])
    with pytest.raises(TransferError, match="refused"):
        download(site, "base", ["f"], tmp_path / "d")
    assert site.killed
    assert everything(tmp_path) == [tmp_path / "d"]


@pytest.mark.parametrize("cut", [0, 100, 513])
def test_a_stream_that_is_cut_short_leaves_nothing(tmp_path, cut):
    with pytest.raises(TransferError, match=r"did not arrive|damaged"):
        download(Site([(member("f"), b"abc")], cut), "base", ["f"], tmp_path / "d")
    assert everything(tmp_path) == [tmp_path / "d"]


def test_noise_instead_of_an_archive(tmp_path):
    site = Site([])
    site.stdout = io.BytesIO(b"garbage" * 200)
    with pytest.raises(TransferError, match="did not arrive"):
        download(site, "base", ["f"], tmp_path / "d")


def test_a_full_disk_here_is_one_sentence(tmp_path, monkeypatch):
    def full(self, *more):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TransferError, match="the disk here is full") as caught:
        download(Site([(member("f"), b"abc")]), "base", ["f"], tmp_path / "d")
    assert f"df -h {tmp_path}/d" in caught.value.hint
    assert everything(tmp_path) == [tmp_path / "d"]


def test_a_file_that_cannot_be_placed_here_is_named(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(errno.EACCES, "Permission denied", str(self), None, str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(TransferError, match="d/f: Permission denied") as caught:
        download(Site([(member("f"), b"abc")]), "base", ["f"], tmp_path / "d")
    assert f"ls -ld {tmp_path}/d" in caught.value.hint


def test_leftovers_of_a_dead_download_are_removed(tmp_path):
    dead = tmp_path / "d/.dlctl-download.999999999.abc"
    dead.mkdir(parents=True)
    download(Site([(member("f"), b"abc")]), "base", ["f"], tmp_path / "d")
    assert everything(tmp_path / "d") == [tmp_path / "d/f"]


def test_an_answer_without_its_frame_is_refused():
    class Short(Site):
        def run(self, script, **more):
            return Completed(0, b"ycontent", b"")

    with pytest.raises(TransferError, match="cut short"):
        read_files(Short([]), ["x"])


def test_a_file_whose_content_was_cut_short_leaves_the_old_one(tmp_path):
    """A connection that was lost looks like the end of the input."""

    class Cuts(LocalTransport):
        def run(self, script, *, stdin=b"", **options):
            return super().run(script, stdin=stdin[:-1], **options)

    (tmp_path / "f").write_text("old")
    with pytest.raises(TransferError, match="was cut short"):
        write_file(Cuts(), str(tmp_path / "f"), b"new content")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_the_last_informative_line_of_tar_is_shown():
    said = "tar: a: Cannot open\ntar: Exiting with failure status due to previous errors\n"
    assert last_telling_line(said) == "tar: a: Cannot open"
    assert last_telling_line("") == ""
