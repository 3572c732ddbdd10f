"""Names that a site sends: none leads out of the folder, and no two get one place."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from dlctl.contract.ground.digests import sha256_of
from dlctl.errors import TransferError
from dlctl.files import target
from dlctl.files.download import download
from dlctl.files.listing import path_of
from dlctl.files.target import PARTIAL
from dlctl.transport import Completed
from dlctl.transport.local import LocalTransport

HERE = LocalTransport()


class Lying:
    """A site whose listing says what the test wants."""

    name = "evil"

    def __init__(self, listing):
        self.listing = listing

    def run(self, script, **more):
        return Completed(0, self.listing, b"")

    def start(self, script, **more):
        raise AssertionError("nothing is to be asked for")


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "..", ".", "./", ""])
def test_a_name_never_leaves_the_folder(tmp_path, name):
    """Neither one that the site lists, nor one that is asked for."""
    small, large = (f"f{name}\0s{size} 644 1 then then\n\0" for size in (3, 50_000_000))
    lies = [("small", small, "f"), ("large", large, "f"), ("link", f"l{name}\0", "f")]
    for kind, listing, asked in [*lies, ("asked for", "", name)]:
        with pytest.raises(TransferError) as told:
            download(Lying(listing.encode()), "base", [asked], tmp_path / "d")
            pytest.fail(f"downloaded: {kind}")
        assert "is not inside the folder" in str(told.value), kind
    assert not (tmp_path / "up").exists()


def fold(name: str) -> str:
    import unicodedata

    return unicodedata.normalize("NFC", name.casefold())


def test_names_that_are_one_in_this_folder_do_not_replace_each_other(tmp_path, monkeypatch):
    """A folder that tells `A` from `a` plays one that does not."""
    base = tmp_path / "site"
    names = ("Model.pt", "model.pt", "d/x", "D/y", "caf\u00e9", "cafe\u0301", "other")
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(name)
    monkeypatch.setattr(target, "folding", lambda destination: fold)
    left_out = []
    paths = download(
        HERE,
        str(base),
        list(names),
        tmp_path / "here",
        on_left_out=lambda *each: left_out.append(each),
    )
    came = [str(path.relative_to(tmp_path / "here")) for path in paths]
    assert sorted(came) == sorted(["Model.pt", "d/x", "caf\u00e9", "other"])
    assert dict(left_out)["model.pt"] == "has the name of Model.pt in this folder"
    assert dict(left_out)["D/y"] == "has the name of d in this folder"
    with pytest.raises(TransferError, match=r"model.pt has the name of Model.pt"):
        download(HERE, str(base), list(names), tmp_path / "there")


def test_a_usual_folder_tells_names_apart(tmp_path):
    assert target.folding(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_python_whose_names_are_ascii_fetches(tmp_path):
    """With LC_ALL=POSIX it ended in an internal error."""
    command = "from pathlib import Path; from dlctl.files import target; import sys; "
    command += "print(sys.getfilesystemencoding(), target.folding(Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", command, tmp_path], capture_output=True, text=True,
        env=os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("ascii None\n", 0), done.stderr


@pytest.mark.parametrize("kind", ["part", "note"])
def test_a_link_in_place_of_a_part_is_not_written_through(tmp_path, kind):
    base, here, outside = tmp_path / "site", tmp_path / "here", tmp_path / "outside"
    base.mkdir()
    (base / "big").write_bytes(b"1" * 3_000_000)
    outside.write_text("mine")
    stop = RuntimeError()

    def interrupt(done_bytes, total_bytes):
        if done_bytes:
            raise stop

    with pytest.raises(RuntimeError):
        download(HERE, str(base), ["big"], here, interrupt)
    for path in (here / PARTIAL).iterdir():
        if (path.suffix == ".note") == (kind == "note"):
            path.unlink()
            path.symlink_to(outside)
    try:
        download(HERE, str(base), ["big"], here)
    except TransferError:
        pass
    else:
        assert (here / "big").read_bytes() == b"1" * 3_000_000
    assert outside.read_text() == "mine"


def test_the_second_download_into_a_folder_waits_for_the_first(tmp_path):
    base, here = tmp_path / "site", tmp_path / "here"
    base.mkdir()
    here.mkdir()
    (base / "f").write_text("1")
    program = (
        "import sys; from pathlib import Path; from dlctl.files.download import download\n"
        "from dlctl.transport.local import LocalTransport\n"
        "download(LocalTransport(), sys.argv[1], ['f'], Path(sys.argv[2]))"
    )
    lock = os.open(here, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen([sys.executable, "-c", program, str(base), str(here)])
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1.0)
        assert not (here / "f").exists()
    finally:
        os.close(lock)
    assert second.wait(60) == 0
    assert (here / "f").read_text() == "1"


def test_a_full_disk_in_mid_file_keeps_what_has_arrived(tmp_path, small_disk):
    small = small_disk("size=24m")
    base = tmp_path / "site"
    base.mkdir()
    (base / "big").write_bytes(os.urandom(20 << 20))
    known = {"big": sha256_of(base / "big")}
    filler = small / "filler"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "check_room", lambda *_: None)
        patch.setattr("dlctl.files.download.check_room", lambda *_: None)
        filler.write_bytes(bytes(8 << 20))
        with pytest.raises(TransferError, match="the disk here is full") as caught:
            download(HERE, str(base), known, small / "here")
    assert "what has arrived is not sent twice" in caught.value.hint
    with pytest.raises(TransferError, match="free, and"):
        download(HERE, str(base), known, small / "here")
    filler.unlink()
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "_SPARE_BYTES", 0)
        download(HERE, str(base), known, small / "here", lambda *n: seen.append(n))
    assert seen[0][0] >= 14 << 20
    assert (small / "here/big").read_bytes() == (base / "big").read_bytes()


def test_leftovers_of_other_kinds_stay(tmp_path):
    (tmp_path / "d" / PARTIAL).mkdir(parents=True)
    old, new = (tmp_path / "d" / PARTIAL / name for name in ("old", "new"))
    for path in (old, new):
        path.write_text("")
    os.utime(old, (1, 1))
    (tmp_path / "f").write_text("x")
    download(HERE, str(tmp_path), ["f"], tmp_path / "d")
    assert not old.exists()
    assert new.exists()
    assert Path(tmp_path, "d/f").read_text() == "x"


def test_a_path_of_the_site_is_what_pathlib_makes_of_it():
    for length in range(1, 7):
        for letters in itertools.product("./a", repeat=length):
            text = "".join(letters)
            assert path_of(text) == str(PurePosixPath(text))
