"""Sites whose links, names and streams would lead files out of the folder, or into one place."""

import errno
import fcntl
import hashlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from login_side import fill

from dlctl.contract.ground.whole_files import sha256_of
from dlctl.errors import TransferError
from dlctl.files import small, target
from dlctl.files.archive import Entry
from dlctl.files.download import download
from dlctl.files.large import CHUNK_BYTES, Partial, bring
from dlctl.files.listing import SiteFile, list_files, path_of
from dlctl.files.site_folders import last_telling_line
from dlctl.files.small_files import read_files, write_file
from dlctl.files.target import PARTIAL
from dlctl.files.upload import Tree, upload
from dlctl.transport import Completed
from dlctl.transport.local import LocalTransport


def archive_of(*members):
    """Return an archive; a member is a name with its content, or with its link as a Path, or with
    the type and the link of something else."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                archive.addfile(info)
            elif isinstance(content, Path):
                info.type, info.linkname = tarfile.SYMTYPE, str(content)
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Evil:
    """A site that lists files and links, and sends one archive after another.

    Args:
        members: What it lists, in the order of the streams.
        streams: The archives, and whether each ends as it should.
    """

    name = "evil"

    def __init__(self, members, *streams):
        self._listing = b"".join(
            f"l{name}\0".encode() if isinstance(content, Path)
            else f"f{name}\0s{len(content)} 644 1 then then\n\0".encode()
            for name, content in members
        )  # fmt: skip
        self._streams = list(streams)
        self._is_whole, self.killed = True, False

    def run(self, script, **more):
        return Completed(0, self._listing, b"")

    def start(self, script, **more):
        self._mark = script.partition("%s %s\\n' ")[2].partition(" ")[0]
        content, self._is_whole = self._streams.pop(0) if self._streams else (b"", True)
        self.stdout = io.BytesIO(content)
        return self

    def wait(self, timeout_s):
        return Completed(0, b"", f"\n{self._mark} \n".encode() if self._is_whole else b"")

    def kill(self):
        self.killed = True


def sends(content):
    """Return a site that lists the file `f`, and sends this."""
    return Evil([("f", b"abc")], (content, True))


def everything(folder):
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize(("name", "content"), [
    ("../f", b""), ("/f", b""), ("other", b""), ("f", (tarfile.CHRTYPE, "")),
    ("f", (tarfile.FIFOTYPE, "")), ("f", (tarfile.SYMTYPE, "../../etc/passwd")),
    ("f", (tarfile.SYMTYPE, "/etc/passwd")), ("f", (tarfile.LNKTYPE, "/etc/passwd")),
])  # fmt: skip
def test_a_file_that_was_not_requested_is_refused(tmp_path, name, content):
    site = sends(archive_of((name, content)))
    with pytest.raises(TransferError, match="refused"):
        download(site, "base", ["f"], tmp_path / "d")
    assert site.killed
    assert everything(tmp_path) == [tmp_path / "d"]


@pytest.mark.parametrize("content", [
    *(archive_of(("f", b"abc"))[:cut] for cut in (0, 100, 513)), b"garbage" * 200,
], ids=["nothing", "half a head", "a head", "noise"])  # fmt: skip
def test_a_stream_that_is_cut_short_leaves_nothing(tmp_path, content):
    with pytest.raises(TransferError, match=r"did not arrive|damaged"):
        download(sends(content), "base", ["f"], tmp_path / "d")
    assert everything(tmp_path) == [tmp_path / "d"]


@pytest.mark.parametrize(("number", "said", "hint"), [
    (errno.ENOSPC, "the disk here is full", "df -h {}/d"),
    (errno.EACCES, "d/f: Permission denied", "ls -ld {}/d"),
])  # fmt: skip
def test_a_file_that_cannot_be_placed_here_is_one_sentence(
    tmp_path, monkeypatch, number, said, hint
):
    dead = tmp_path / "d/.dlctl-download.999999999.abc"
    dead.mkdir(parents=True)

    def refuse(self, target):
        raise OSError(number, os.strerror(number), str(self), None, str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(TransferError, match=said) as caught:
        download(sends(archive_of(("./f", b"abc"))), "base", ["f"], tmp_path / "d")
    assert hint.format(tmp_path) in caught.value.hint
    assert everything(tmp_path) == [tmp_path / "d"], "nor what a dead download left"


def test_an_answer_without_its_frame_is_refused():
    short = SimpleNamespace(name="evil", run=lambda *_, **__: Completed(0, b"ycontent", b""))
    with pytest.raises(TransferError, match="cut short"):
        read_files(short, ["x"])


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


def leading_out(folder):
    """Return the links in a folder that lead out of it."""
    root = folder.resolve()
    return [p for p in folder.rglob("*") if not p.resolve().is_relative_to(root)]


@pytest.mark.parametrize(
    "members",
    [
        [("a/b/up", Path("../..")), ("a/b/out", Path("up/../secret"))],
        [("a/b/out", Path("up/../secret")), ("a/b/up", Path("../.."))],
        [("x/y/z/f", b"1"), ("a", Path("x/y/z")), ("a/out", Path("../../secret"))],
    ],
    ids=["through a link", "through a later link", "from a folder in place of a link"],
)
def test_links_that_together_point_outside_are_refused(tmp_path, members):
    here = tmp_path / "d"
    site = Evil(members, (archive_of(*members), True))
    try:
        download(site, "base", [name for name, _ in members], here)
    except TransferError as error:
        assert "points outside" in error.message  # noqa: PT017 - else nothing leads out
    assert leading_out(here) == []


def test_links_that_stay_inside_come(tmp_path):
    members = [("a/b/f", b"1"), ("a/link", Path("./b/f")), ("top", Path("a/b")),
               ("a/b/up", Path("../../a//b/f"))]  # fmt: skip
    here = tmp_path / "d"
    names = [name for name, _ in members]
    download(Evil(members, (archive_of(*members), True)), "base", names, here)
    assert [(here / name).read_text() for name in ("a/link", "top/f", "a/b/up")] == ["1"] * 3


def test_a_link_that_a_broken_stream_left_is_not_written_through(tmp_path, monkeypatch):
    """A link that waits for its sum lies in a folder of its own, from where it leads elsewhere."""
    monkeypatch.setattr(small, "_GROUP_FILES", 1)
    members = [("a/b/link", Path("../../out")), ("f", b"evil")]
    site = Evil(members, (archive_of(members[0]), False), *[(archive_of(members[1]), True)] * 5)
    with pytest.raises(TransferError):
        download(
            site, "base", [name for name, _ in members], tmp_path / "d", on_left_out=lambda *_: None
        )
    assert not (tmp_path / "out").exists() and not (tmp_path / "d/out").exists()


@pytest.mark.parametrize("name", [f"{PARTIAL}/x", ".dlctl-download.7.x/y"])
def test_names_that_dlctl_uses_itself_are_left_out(tmp_path, name):
    base = tmp_path / "site"
    for path in (name, "f"):
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text("1")
    left_out = []
    paths = download(
        LocalTransport(),
        str(base),
        [name, "f"],
        tmp_path / "d",
        on_left_out=lambda *each: left_out.append(each),
    )
    assert [path.name for path in paths] == ["f"]
    assert left_out == [(name, "has a name that dlctl uses itself")]


# Parts that are whole, or that nobody waits for any more ------------------------------------------


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_part_that_is_whole_is_read_and_not_sent_again(tmp_path, is_known, is_damaged):
    """A fetch that was killed between the last byte and the file's place leaves such a part."""
    base, here = tmp_path / "site", tmp_path / "here"
    base.mkdir()
    here.mkdir()
    content = os.urandom(CHUNK_BYTES + 5)
    (base / "big").write_bytes(content)
    transport = LocalTransport()
    (file,) = list_files(transport, str(base), ["big"])
    if is_known:
        known = hashlib.sha256(content).hexdigest()
        file = SiteFile("big", "f", file.size_bytes, known, file.stamp)
    partial = Partial(here, str(base), file)
    brought = bring(transport, str(base), [partial], lambda _: None)
    assert [whole for _, whole in brought] == [True]
    if is_damaged:
        with partial.path.open("r+b") as part:
            part.write(b"what a power cut left")
    seen = []
    wanted = {"big": file.sha256} if is_known else ["big"]
    download(transport, str(base), wanted, here, lambda *n: seen.append(n))
    assert (here / "big").read_bytes() == content
    if not is_damaged:
        assert seen[0][0] == file.size_bytes  # nothing was to come


def test_a_chunk_that_was_damaged_on_the_way_is_not_kept(tmp_path):
    class Damages(LocalTransport):
        def start(self, script, **options):
            there = script.replace("tee /dev/fd/4 >&5", "tee /dev/fd/4 | tr a b >&5")
            return super().start(there, **options)

    (tmp_path / "site").mkdir()
    (tmp_path / "site/big").write_bytes(b"a" * 3_000_000)
    with pytest.raises(TransferError, match="big is damaged"):
        download(Damages(), str(tmp_path / "site"), ["big"], tmp_path / "here")
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []


def test_the_name_of_a_large_file_is_no_word_of_the_shells(tmp_path):
    name, content = "a  b'$(touch evil) *", os.urandom(3_000_000)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / name).write_bytes(content)
    paths = download(LocalTransport(), str(tmp_path / "site"), [name], tmp_path / "here")
    assert [path.read_bytes() for path in paths] == [content]
    assert [path.name for path in (tmp_path / "site").iterdir()] == [name]


# Names, and the folder here ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up", "..", ".", "./", ""])
def test_a_name_never_leaves_the_folder(tmp_path, name):
    """Neither one that the site lists, nor one that is asked for."""
    small, large = (f"f{name}\0s{size} 644 1 then then\n\0" for size in (3, 50_000_000))
    lies = [("small", small, "f"), ("large", large, "f"), ("link", f"l{name}\0", "f")]
    for kind, listing, asked in [*lies, ("asked for", "", name)]:
        site = Evil([])
        site._listing, site.start = listing.encode(), None  # nothing is to be asked for
        with pytest.raises(TransferError) as told:
            download(site, "base", [asked], tmp_path / "d")
            pytest.fail(f"downloaded: {kind}")
        assert "is not inside the folder" in str(told.value), kind
    assert not (tmp_path / "up").exists()


def fold(name):
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
        LocalTransport(),
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
        download(LocalTransport(), str(base), list(names), tmp_path / "there")


def test_a_python_whose_names_are_ascii_fetches(tmp_path):
    """With LC_ALL=POSIX it ended in an internal error."""
    assert target.folding(tmp_path) is None, "a usual folder tells names apart"
    assert list(tmp_path.iterdir()) == []
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
        download(LocalTransport(), str(base), ["big"], here, interrupt)
    for path in (here / PARTIAL).iterdir():
        if (path.suffix == ".note") == (kind == "note"):
            path.unlink()
            path.symlink_to(outside)
    try:
        download(LocalTransport(), str(base), ["big"], here)
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


@pytest.mark.parametrize(("options", "size"), [("nr_inodes=40", 0), ("size=1m", 1 << 16)])
def test_the_command_in_the_hint_shows_what_a_full_disk_lacks(small_disk, options, size):
    """It was `df -h` where all inodes were used up."""
    small, number = small_disk(options), 0
    with pytest.raises(OSError, match="No space left") as full:
        while True:
            (small / f"fill-{number}").write_bytes(bytes(size))
            number += 1
    hint = target.local_failure(small / "here/f", full.value).hint
    command = shlex.split(re.search(r"\((df .*?)\)", hint)[1])
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "100%" in shown, (command, shown)


@pytest.mark.parametrize(
    ("options", "size", "what"),
    [("nr_inodes=40", 0, "has no inode left"), ("size=1m", 1 << 16, "the disk is full")],
)
def test_the_command_of_a_site_shows_what_its_full_disk_lacks(small_disk, options, size, what):
    """It was `df -h`, or both, for all that is written at a site; the user got no further."""
    small = small_disk(options)
    fill(small, size)
    transport, root = LocalTransport(), small / "a b/root"
    acts = (
        lambda: upload(transport, str(root), [Tree("t", [Entry("f", b"1" * (1 << 20))])]),
        lambda: write_file(transport, str(root / "f"), b"1" * (1 << 20)),
    )
    for act in acts:
        with pytest.raises(TransferError, match=what) as caught:
            act()
        command = caught.value.hint.partition(": ")[2]
        shown = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True)
        assert "100%" in shown.stdout, (command, shown)
        (small / "fill-0").unlink()
        (small / "fill-1").unlink(missing_ok=True)
        fill(small, size)


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
            download(LocalTransport(), str(base), known, small / "here")
    assert "what has arrived is not sent twice" in caught.value.hint
    with pytest.raises(TransferError, match="free, and"):
        download(LocalTransport(), str(base), known, small / "here")
    filler.unlink()
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "_SPARE_BYTES", 0)
        download(LocalTransport(), str(base), known, small / "here", lambda *n: seen.append(n))
    assert seen[0][0] >= 14 << 20
    assert (small / "here/big").read_bytes() == (base / "big").read_bytes()


def test_leftovers_of_other_kinds_stay(tmp_path):
    (tmp_path / "d" / PARTIAL).mkdir(parents=True)
    old, new = (tmp_path / "d" / PARTIAL / name for name in ("old", "new"))
    for path in (old, new):
        path.write_text("")
    os.utime(old, (1, 1))
    (tmp_path / "f").write_text("x")
    download(LocalTransport(), str(tmp_path), ["f"], tmp_path / "d")
    assert not old.exists()
    assert new.exists()
    assert Path(tmp_path, "d/f").read_text() == "x"


def test_a_path_of_the_site_is_what_pathlib_makes_of_it():
    for length in range(1, 7):
        for letters in itertools.product("./a", repeat=length):
            text = "".join(letters)
            assert path_of(text) == str(PurePosixPath(text))
