from __future__ import annotations

import io
import os
import socket
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from odd_names import ODD_NAMES, write_odd_names
from repository import REPOSITORY

from dlctl.errors import BundleError
from dlctl.files.archive import END_OF_ARCHIVE, write_entry
from dlctl.request.bundle import collect
from dlctl.request.request import runtime_entries

# In pieces, so that a scanner does not take this file for what it tests.
PRIVATE_KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nAAAA\n"
AWS_KEY = "AKIA" + "IOSFODNN7EXAMPLE"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text("print(1)\n")
    return root


def add(root: Path, name: str, text: str = "x") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tar_stream(bundle, prefix=""):
    for entry in bundle.entries:
        yield from write_entry(entry, prefix)
    yield END_OF_ARCHIVE


def names(root: Path) -> list[str]:
    return [file.path for file in collect(root).files]


def test_the_file_that_dlctls_own_output_goes_to_is_not_sent(folder):
    """`dlctl submit > log.txt 2>&1`: a warning before the upload made the file change during it."""
    kept = os.dup(2)
    with (folder / "log.txt").open("w") as log:
        os.dup2(log.fileno(), 2)
        try:
            assert names(folder) == ["train.py"]
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    assert names(folder) == ["log.txt", "train.py"]


def test_nothing_of_caches_environments_and_results(folder):
    for name in (
        ".git/config", "lib/__pycache__/a.pyc", ".venv/bin/python", "results/1/model",
        "env/pyvenv.cfg", "env/bin/python", ".mypy_cache/x", ".DS_Store",
    ):  # fmt: skip
        add(folder, name)
    add(folder, "lib/results/kept")
    assert names(folder) == ["lib/results/kept", "train.py"]


def test_gitignore_at_every_level(folder):
    add(folder, ".gitignore", "*.log\n/data/\n!keep.log\n")
    add(folder, "lib/.gitignore", "*.py\n!good.py\n/sub\n")
    for name in ("a.log", "keep.log", "data/x", "lib/data/x", "lib/a.py", "lib/good.py"):
        add(folder, name)
    add(folder, "lib/sub/x")
    add(folder, "lib/deep/sub/x")
    assert names(folder) == [
        ".gitignore", "keep.log", "lib/.gitignore", "lib/data/x", "lib/deep/sub/x",
        "lib/good.py", "train.py",
    ]  # fmt: skip


def test_dlctlignore_wins_over_gitignore(folder):
    add(folder, ".gitignore", "*.bin\n")
    add(folder, ".dlctlignore", "!needed.bin\nnotes/\n")
    for name in ("needed.bin", "other.bin", "notes/x"):
        add(folder, name)
    assert names(folder) == [".dlctlignore", ".gitignore", "needed.bin", "train.py"]


def test_the_repository_above_is_heard(tmp_path, folder):
    (tmp_path / ".git").mkdir()
    add(tmp_path, ".gitignore", "/project/local\n*.tmp\n")
    add(folder, "local")
    add(folder, "a.tmp")
    add(folder, "lib/local")
    assert names(folder) == ["lib/local", "train.py"]


@pytest.mark.parametrize(
    "name",
    [
        ".env", ".env.production", "key.pem", "id_rsa", "deploy/id_ed25519", ".netrc",
        "credentials",
        ".aws/config", "kaggle.json", ".git-credentials", "SERVICE-ACCOUNT-1.json",
    ],
)  # fmt: skip
def test_names_of_secrets_are_refused(folder, name):
    add(folder, name)
    with pytest.raises(BundleError) as caught:
        collect(folder)
    assert f"{name}: looks like a secret" in str(caught.value)
    assert ".dlctlignore" in str(caught.value)
    assert f"!/{name}" in str(caught.value)


@pytest.mark.parametrize("text", [PRIVATE_KEY, f"key = '{AWS_KEY}'", "token: hf_" + "a" * 34])
def test_contents_of_secrets_are_refused(folder, text):
    add(folder, "settings.py", text)
    with pytest.raises(BundleError, match=r"settings\.py: looks like a secret"):
        collect(folder)


STORE = "name: a\ndata_stores:\n  - id: a\n    connection:\n      user_name: me\n      password: "


def test_another_manifest_with_a_password_is_refused(folder):
    """It would go to the site and, with the code, into the container of the results."""
    for harmless in ("{from_env: X}", "\n        from_env: X", ""):
        add(folder, "other.yml", STORE + harmless)
        assert "other.yml" in names(folder)
    for literal in ("hunter2", "'hunter2'", "4711"):
        add(folder, "other.yml", STORE + literal)
        with pytest.raises(BundleError, match=r"other.yml: looks like a secret \(a data st"):
            collect(folder)
    add(folder, "other.yml", "data_stores: [{connection: {user_name: me, password: x}}]")
    with pytest.raises(BundleError):
        collect(folder)


def test_what_is_harmless_ignored_or_allowed_passes_but_not_by_gitignores_negation(folder):
    harmless = [".env.example", "id_rsa.pub", "keys.py", "tokenizer.json"]
    for name in (*harmless, ".env", "certs/public.pem"):
        add(folder, name)
    add(folder, ".dlctlignore", ".env\n!certs/public.pem\n")
    assert names(folder) == sorted([*harmless, ".dlctlignore", "certs/public.pem", "train.py"])
    add(folder, ".dlctlignore", "")
    add(folder, ".gitignore", "*\n!.env\n")
    with pytest.raises(BundleError, match=r"\.env"):
        collect(folder)


def test_all_problems_at_once(folder):
    os.mkfifo(folder / ".gitignore")
    with pytest.raises(BundleError, match="gitignore: a socket, pipe"):  # and no wait for a writer
        names(folder)
    (folder / ".gitignore").unlink()
    add(folder, ".env")
    os.mkfifo(folder / "pipe")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../../x")
    with socket.socket(socket.AF_UNIX) as server:
        previous = Path.cwd()
        os.chdir(folder)
        try:
            server.bind("sock")
        finally:
            os.chdir(previous)
    with pytest.raises(BundleError) as caught:
        collect(folder)
    assert len(caught.value.problems) == 5
    text = str(caught.value)
    assert "out: a link that points outside the folder (/etc/passwd)" in text
    assert "pipe: a socket, pipe or device" in text


def test_links_inside_are_sent_as_they_are(folder):
    """Those in a circle were an internal error: Python's own resolution raised RuntimeError."""
    for name, target in {"a": "b", "b": "a", "alias.py": "train.py", "inner": "lib"}.items():
        (folder / name).symlink_to(target)
    found = {file.path: file.link for file in collect(folder).files}
    assert found == {"a": "b", "alias.py": "train.py", "b": "a", "inner": "lib", "train.py": None}
    (folder / "lib/deep").mkdir(parents=True)
    (folder / "lib/deep/top").symlink_to("../..")
    for name, target in {"trick": "inner/../../project-2", "lib/deep/hop": "top/../other"}.items():
        (folder / name).symlink_to(target)
        with pytest.raises(BundleError, match=name):  # the second one's words stay inside
            collect(folder)
        (folder / name).unlink()


@pytest.fixture
def ordinary_user():
    """Be no root, who reads everything; in a folder of its own, for pytest's are root's alone."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name), lambda: os.seteuid(user or 65534)
        os.seteuid(user)


def test_unreadable_files_are_named(ordinary_user):
    folder, become = ordinary_user
    add(folder, "locked").chmod(0)
    become()
    with pytest.raises(BundleError, match="locked: can't be read"):
        collect(folder)


def test_the_size_is_capped_with_the_largest_named(folder):
    add(folder, "data/big", "x" * 3_000_000)
    add(folder, "small", "x" * 10)
    with pytest.raises(BundleError, match=r"data/ \(3\.0 MB\)"):
        collect(folder, limit_bytes=1_000_000)
    assert collect(folder).size_bytes == 3_000_000 + 10 + 9
    with pytest.raises(BundleError, match="is not a folder"):
        collect(folder / "train.py")


def test_the_digest_names_the_content_alone(folder):
    first = collect(folder).digest
    os.utime(folder / "train.py", (1, 1))
    (folder / "train.py").chmod(0o664)
    assert collect(folder).digest == first
    (folder / "train.py").chmod(0o755)
    executable = collect(folder).digest
    (folder / "train.py").rename(folder / "train2.py")
    renamed = collect(folder).digest
    add(folder, "train2.py", "print(2)\n").chmod(0o755)
    assert len({first, executable, renamed, collect(folder).digest}) == 4
    (folder / "a").write_text("train2.py")
    is_text = collect(folder).digest
    (folder / "a").unlink()
    (folder / "a").symlink_to("train2.py")
    assert collect(folder).digest != is_text, "a file is no link to the same bytes"


def test_the_archive_is_deterministic_and_owned_by_nobody(folder):
    add(folder, "lib/run.sh").chmod(0o700)
    (folder / "alias").symlink_to("train.py")
    data = b"".join(tar_stream(collect(folder), "code/"))
    os.utime(folder / "train.py", (5, 5))
    assert b"".join(tar_stream(collect(folder), "code/")) == data
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {m.name: m for m in archive}
        assert archive.extractfile("code/train.py").read() == b"print(1)\n"
    assert sorted(members) == [
        "code/.dlctl-index", "code/alias", "code/lib", "code/lib/run.sh", "code/train.py"
    ]  # fmt: skip
    assert {(m.uid, m.gid, m.uname) for m in members.values()} == {(0, 0, "")}
    assert members["code/lib/run.sh"].mode == 0o755
    assert members["code/lib"].isdir()
    assert members["code/alias"].linkname == "train.py"


def test_names_of_any_bytes_survive(folder):
    add(write_odd_names(folder), "x" * 200)
    bundle = collect(folder)
    sent = {*ODD_NAMES, "x" * 200, "train.py"}
    assert {file.path for file in bundle.files} == sent
    data = io.BytesIO(b"".join(tar_stream(bundle)))
    with tarfile.open(fileobj=data, encoding="utf-8", errors="surrogateescape") as archive:
        assert {*archive.getnames()} >= sent


def test_the_archive_is_not_held_in_memory(folder):
    with (folder / "big").open("wb") as file:
        file.truncate(64 << 20)
    bundle = collect(folder)
    tracemalloc.start()
    try:
        size = sum(len(chunk) for chunk in tar_stream(bundle))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 64 << 20
    assert peak < 8 << 20


def test_the_runtime_has_all_that_nodes_run():
    """Without native.c a cluster's pushes would be slower, and no more be said than in a log."""
    root = REPOSITORY
    sent = {entry.path: entry.source for entry in runtime_entries()[1]}
    for package in ("dlctl/contract", "learner", "psrv", "search"):
        every = (root / package).rglob("*.*")
        files = [path for path in every if path.suffix not in (".pyc", ".pyi")]
        assert files
        for path in files:
            assert sent[str(path.relative_to(root))] == path.read_bytes()
    assert "psrv/solvers/native.c" in sent
