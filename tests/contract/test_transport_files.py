from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
from odd_names import ODD_NAMES, write_odd_names

from dlctl.errors import TransferError
from dlctl.files.archive import Entry
from dlctl.files.download import download
from dlctl.files.small_files import read_appended, read_files, read_texts, write_file
from dlctl.files.upload import Tree, upload

here = pytest.mark.parametrize("transport", ["local"], indirect=True)
"""For what is the same at every site, and takes long."""


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


class Changed:
    """A transport whose scripts begin with other lines."""

    def __init__(self, transport, before):
        self.transport, self.before, self.name = transport, before, transport.name

    def start(self, script, **more):
        return self.transport.start(f"{self.before}\n{script}", **more)

    def run(self, script, **more):
        return self.transport.run(f"{self.before}\n{script}", **more)


ADDS_TWO_BYTES = 'tar() { /usr/bin/env tar "$@" && for f in *-0/f; do echo x >>"$f"; done; }'
NO_SUMS = "command() { case $* in *sum*) return 1;; esac; }"
FULL_DISK = (
    "tar() { cat >/dev/null; echo 'tar: f: Cannot write: No space left on device' >&2;"
    " echo 'tar: Exiting with failure status' >&2; return 2; }"
)


def leftovers(path: Path) -> list[Path]:
    return [p for p in path.rglob(".dlctl-*")]


# Upload -----------------------------------------------------------------------------------------


def test_several_trees_from_disk_and_memory_in_one_stream(transport, tmp_path):
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    root = tmp_path / "ro ot's"
    seen = []
    trees = [
        Tree("store/abc", [Entry("d", mode=0o755), Entry("d/big", tmp_path / "big", 0o755)]),
        Tree("jobs/1", [Entry("secret", b"s", 0o600), Entry("l", link="secret")]),
    ]
    upload(transport, str(root), trees, on_progress=lambda *n: seen.append(n))
    assert content(root / "store/abc") == {"d/big": (tmp_path / "big").read_bytes()}
    assert (root / "jobs/1/l").readlink() == Path("secret")
    assert stat.S_IMODE((root / "jobs/1/secret").stat().st_mode) == 0o600
    assert os.access(root / "store/abc/d/big", os.X_OK)
    assert seen[-1] == (3_000_001, 3_000_001)
    assert leftovers(root) == []


def test_odd_names_survive_the_way_there_and_back(transport, tmp_path):
    trees = [Tree(f"t/{name}", [Entry(name, os.fsencode(name))]) for name in ODD_NAMES]
    upload(transport, str(tmp_path / "r"), trees)
    sent = {f"t/{name}/{name}": os.fsencode(name) for name in ODD_NAMES}
    assert content(tmp_path / "r") == sent
    paths = download(transport, str(tmp_path / "r"), ["t"], tmp_path / "back")
    assert {str(path.relative_to(tmp_path / "back")) for path in paths} == {*sent}
    assert content(tmp_path / "back") == sent


def test_what_is_there_is_merged_or_repaired(transport, tmp_path):
    for tree in (
        Tree("j", [Entry("d"), Entry("d/a", b"1"), Entry("b", b"1")]),
        Tree("j", [Entry("d"), Entry("d/c", b"2"), Entry("b", b"2")]),
    ):
        upload(transport, str(tmp_path), [tree])
    assert content(tmp_path) == {"j/d/a": b"1", "j/d/c": b"2", "j/b": b"2"}
    upload(transport, str(tmp_path), [Tree("j", [Entry("b", b"3")], repairs=True)])
    assert content(tmp_path) == {"j/b": b"3"}
    upload(transport, str(tmp_path), [Tree("empty", [])])
    assert list((tmp_path / "empty").iterdir()) == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("before", ["", 'rm() { sleep 1; command rm "$@"; }'])
def test_a_source_that_fails_leaves_nothing(transport, tmp_path, before):
    """At a slow site SIGTERM reached `rm`, or SIGKILL followed after 0.2 s: a file was left."""
    entries = [Entry("a", b"x" * 400_000), Entry("b", tmp_path / "absent", size_bytes=3)]
    with pytest.raises(TransferError, match="absent"):
        upload(Changed(transport, before), str(tmp_path / "r"), [Tree("t", entries)])
    while leftovers(tmp_path / "r"):
        transport.run("sleep 0.05")
    assert content(tmp_path / "r") == {}


def test_what_can_not_be_sent_is_one_sentence(transport, tmp_path):
    (tmp_path / "f").write_bytes(b"12345")
    grown = [Tree("t", [Entry("f", tmp_path / "f", size_bytes=3)])]
    for root, trees, said in (
        (tmp_path, grown, "changed while it was sent"),
        (tmp_path / "f/root", [Tree("t", [Entry("f", b"1")])], "f/root"),
    ):
        with pytest.raises(TransferError, match=said) as caught:
            upload(transport, str(root), trees)
        assert "\n" not in caught.value.message
        assert caught.value.hint or root == tmp_path
    assert not (tmp_path / "t").exists()


def test_a_full_disk_is_one_sentence(transport, tmp_path):
    with pytest.raises(TransferError, match="the disk is full.*f: Cannot write") as caught:
        full, tree = Changed(transport, FULL_DISK), Tree("t", [Entry("f", b"1" * 2_000_000)])
        upload(full, str(tmp_path), [tree])
    assert f"df -h {tmp_path}" in caught.value.hint
    assert not (tmp_path / "t").exists()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("before", "said"),
    [(ADDS_TWO_BYTES, "not what was sent"), (f"{NO_SUMS}\n{ADDS_TWO_BYTES}", "7 bytes arrived")],
)
def test_damage_on_the_way_is_found(transport, tmp_path, before, said):
    with pytest.raises(TransferError, match=said):
        upload(Changed(transport, before), str(tmp_path), [Tree("t", [Entry("f", b"right")])])
    assert not (tmp_path / "t").exists()
    upload(Changed(transport, NO_SUMS), str(tmp_path), [Tree("t", [Entry("f", b"right")])])
    assert content(tmp_path) == {"t/f": b"right"}


def test_leftovers_of_a_day_ago_are_removed(transport, tmp_path):
    old, new = tmp_path / ".dlctl-upload.old", tmp_path / ".dlctl-upload.new"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (1, 1))
    upload(transport, str(tmp_path), [Tree("t", [])])
    assert not old.exists()
    assert new.exists()


# Download ---------------------------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path):
    base = tmp_path / "remote"
    (base / "results/deep").mkdir(parents=True)
    (base / "results/model.pt").write_bytes(os.urandom(2_500_000))
    (base / "results/deep/metrics").write_bytes(b"1 2 3")
    (base / "results/empty").write_bytes(b"")
    (base / "results.json").write_bytes(b"{}")
    (base / "results/latest").symlink_to("model.pt")
    return base


def test_folders_and_files_come_to_the_same_places(transport, tmp_path, remote):
    os.link(remote / "results.json", remote / "results/twin.json")
    seen = []
    paths = download(
        transport,
        str(remote),
        ["results", "results.json"],
        tmp_path / "here",
        lambda *n: seen.append(n),
    )
    assert content(tmp_path / "here") == content(remote)
    assert (tmp_path / "here/results/latest").readlink() == Path("model.pt")
    assert sorted(paths) == sorted(p for p in (tmp_path / "here").rglob("*") if not p.is_dir())
    assert seen[-1][0] == seen[-1][1] == 2_500_009
    assert leftovers(tmp_path / "here") == []


def test_a_file_that_is_already_here_is_not_sent_again(transport, tmp_path, remote):
    here = tmp_path / "here"
    download(transport, str(remote), ["results"], here)
    (here / "results/deep/metrics").write_bytes(b"9 9 9")
    before = (here / "results/model.pt").stat().st_ino
    seen = []
    download(transport, str(remote), ["results"], here, lambda *n: seen.append(n))
    assert content(here / "results") == content(remote / "results")
    assert (here / "results/model.pt").stat().st_ino == before
    assert seen[-1] == (5, 5)


def test_known_hashes_are_held_against_what_comes(transport, tmp_path, remote):
    right = hashlib.sha256(b"1 2 3").hexdigest()
    download(transport, str(remote), {"results/deep/metrics": right}, tmp_path / "a")
    assert content(tmp_path / "a") == {"results/deep/metrics": b"1 2 3"}
    with pytest.raises(TransferError, match="damaged"):
        download(transport, str(remote), {"results/deep/metrics": "0" * 64}, tmp_path / "b")
    assert content(tmp_path / "b") == {}
    assert leftovers(tmp_path / "b") == []


@here
def test_many_files_need_no_long_argument_list(transport, tmp_path):
    base = tmp_path / "remote/many"
    base.mkdir(parents=True)
    for i in range(1500):
        (base / f"{'x' * 80}-{i}").write_bytes(b"%d" % i)
    paths = download(transport, str(tmp_path / "remote"), ["many"], tmp_path / "here")
    assert len(paths) == 1500
    assert content(tmp_path / "here/many") == content(base)


def test_what_can_not_be_fetched_is_named_or_left_out(transport, tmp_path, remote):
    def refused(said, names, base=remote, here=tmp_path / "here"):
        with pytest.raises(TransferError, match=said):
            download(transport, str(base), names, here)

    refused("nothing-here is not there", ["results.json", "nothing-here"])
    refused("no-base", ["x"], tmp_path / "no-base")
    (remote / "results/evil").symlink_to("../../outside")
    refused("points outside", ["results"])
    left_out = {}
    came = download(
        transport, str(remote), ["results"], tmp_path / "here", on_left_out=left_out.__setitem__
    )
    assert left_out == {"results/evil": "is a link that points outside (../../outside)"}
    assert content(tmp_path / "here/results") and tmp_path / "here/results/evil" not in came
    (remote / "results/evil").unlink()
    (tmp_path / "outside").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/results").symlink_to(tmp_path / "outside")
    refused("points outside", ["results"], here=tmp_path / "linked")
    assert list((tmp_path / "outside").iterdir()) == [], "a link that is here leads no file outside"
    os.mkfifo(remote / "results/pipe")
    refused("pipe is neither a file nor a folder", ["results"], here=tmp_path / "there")


# Small files ------------------------------------------------------------------------------------


def test_a_file_of_a_folder_that_nobody_can_look_into_is_not_taken_for_absent(transport, tmp_path):
    """A file system that is away: a training on it has not been removed."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(TransferError, match="Too many levels of symbolic links"):
        read_files(transport, [f"{tmp_path}/absent", f"{loop}/jobs/t-1/plan.json"])
    (tmp_path / "a file").touch()
    absent = [f"{tmp_path}/removed/plan.json", f"{tmp_path}/a file/plan.json", "no-such-file"]
    for read in (read_files, read_texts):
        assert read(transport, absent) == dict.fromkeys(absent)
        for hidden in (f"{loop}/jobs/t-1/plan.json", f"{loop}/plan.json"):
            with pytest.raises(TransferError, match="Too many levels of symbolic links"):
                read(transport, [f"{tmp_path}/absent", hidden])


def test_read_files(transport, tmp_path):
    (tmp_path / "a b").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    paths = [str(tmp_path / name) for name in ("a b", "empty", "none")]
    assert read_files(transport, paths) == {
        paths[0]: bytes(range(256)), paths[1]: b"", paths[2]: None
    }  # fmt: skip
    assert read_files(transport, []) == {}


@here
def test_read_many_texts(transport, tmp_path):
    odd = {"a b": b"x\n\ny\n", "it's=1": b"\xff\xc3\xa9\n", "new\nline": b"1\n", "empty": b""}
    texts = {str(tmp_path / f"{n} {name}"): text for n in range(250) for name, text in odd.items()}
    for path, text in texts.items():
        Path(path).write_bytes(text)
    (tmp_path / "no end").write_bytes(b"last")
    others = {f"{tmp_path}/no end": b"last\n", f"{tmp_path}/none": None, str(tmp_path): None}
    assert read_texts(transport, [*others, *texts]) == others | texts
    assert read_texts(transport, []) == {}


def test_write_file_is_whole_and_has_its_mode(transport, tmp_path):
    path = tmp_path / "new/it's"
    data = os.urandom(300_000)
    write_file(transport, str(path), b"old")
    write_file(transport, str(path), data, 0o600)
    assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["it's"]
    with pytest.raises(TransferError, match=r"it can't be changed .*it's") as caught:
        write_file(transport, str(path / "x"), b"1")
    for command in caught.value.hint.partition("there: ")[2].split("; "):
        assert transport.run(command).exit_code == 0, command


def test_appended_bytes_come_once(transport, tmp_path):
    folder = write_odd_names(tmp_path / "attempts/1")
    (folder / "other").write_bytes(b"")
    sizes = {f"attempts/1/{name}": len(os.fsencode(name)) for name in ODD_NAMES}

    def appended(offsets, limit_bytes):
        return read_appended(transport, str(tmp_path), ["attempts/*/*"], offsets, limit_bytes)

    assert appended({}, 1000) == {key: os.fsencode(Path(key).name) for key in sizes}
    for name in ODD_NAMES:
        with (folder / name).open("ab") as file:
            file.write(b"two\n\0")
    assert appended(sizes, 2) == dict.fromkeys(sizes, b"tw")
    assert appended({key: size + 5 for key, size in sizes.items()}, 9) == {}


def test_no_name_forges_a_line(transport, tmp_path):
    """Python's `splitlines` ends a line at each of these; the name would be another file's."""
    names = [f"1-0{end}9 2-0" for end in ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028")]
    for name in names:
        (tmp_path / name).write_bytes(b"1")
    assert read_appended(transport, str(tmp_path), ["*"], {}, 9) == dict.fromkeys(names, b"1")


def test_patterns_with_odd_letters(transport, tmp_path):
    assert read_appended(transport, str(tmp_path / "none"), ["*"], {}, 9) == {}
    assert read_appended(transport, str(tmp_path), ["*.log", "x/*"], {}, 9) == {}
    (tmp_path / "a 'b").mkdir()
    (tmp_path / "a 'b/1.log").write_bytes(b"x")
    (tmp_path / "a 'b/12.log").write_bytes(b"y")
    found = read_appended(transport, str(tmp_path), ["a 'b/?.log", "a 'b/[0-9]2.log"], {}, 9)
    assert found == {"a 'b/1.log": b"x", "a 'b/12.log": b"y"}
