"""No archive, repository or body harms this machine."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from login_side import make_record
from rest_server import zipped

from dlctl.contract import State
from dlctl.errors import ManifestError
from dlctl.serve import uploads

LIST = "/api/v1/trainings"
AS_SOMEBODY = ("-c", "user.name=x", "-c", "user.email=x@example.org")


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *AS_SOMEBODY, *words], cwd=folder, check=True,
                          capture_output=True, text=True).stdout.strip()  # fmt: skip


def committed(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "_PROTOCOLS", "file")
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def brought(folder: Path, manifest: bytes | None = None) -> Path:
    found = f"file://{folder}", git(folder, "rev-parse", "HEAD")
    return uploads.folder_of(manifest, git=found)


def test_the_same_commit_is_the_same_folder(desk, tmp_path, monkeypatch):
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    there = tmp_path / "there"
    there.mkdir()
    (there / "manifest.yml").write_text("name: x\n")
    wanted = f"ssh://there{there}", committed(there)
    first = uploads.folder_of(None, git=wanted)
    time.sleep(1.1)  # Git's index knows times
    assert uploads.folder_of(None, git=wanted) == first, "a repeated request would be another one"
    assert sorted(each.name for each in first.iterdir()) == [".git", "manifest.yml"]


def test_a_repository_writes_and_reads_only_its_own_files(repository, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("framework: mine")
    (repository / "manifest.yml").symlink_to(secret)
    committed(repository)
    with pytest.raises(ManifestError, match="no manifest"):
        brought(repository)
    folder = brought(repository, b"name: x")
    assert secret.read_text() == "framework: mine"
    assert (folder / "manifest.yml").read_text() == "name: x"


def test_a_repository_that_is_too_large_is_not_awaited(repository, monkeypatch):
    (repository / "manifest.yml").write_text("name: x\n")
    committed(repository)
    monkeypatch.setattr(uploads, "MOST_UNPACKED_BYTES", 1000)
    with pytest.raises(uploads.TooLarge):
        brought(repository)


def test_git_in_an_archive_runs_nothing_here(server, tmp_path):
    folder, mark = tmp_path / "code", tmp_path / "ran"
    folder.mkdir()
    (folder / "run.sh").write_text("true")
    committed(folder)
    git(folder, "config", "core.fsmonitor", f"touch {mark}; false")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder))
    upload = uploads.folder_of(b"name: x", made)
    assert sorted(each.name for each in upload.iterdir()) == ["manifest.yml", "run.sh"]


def tar_of(*members: tarfile.TarInfo) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for each in members:
            archive.addfile(each)
    return made


def folder_in_tar(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = tarfile.DIRTYPE
    return made


def refused(made: io.BytesIO) -> None:
    with pytest.raises(uploads.TooLarge):
        uploads.folder_of(b"name: x", made)
    assert not [*uploads.uploads_folder().iterdir()]


def test_empty_files_and_folders_count(desk, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_FILES", 10)
    refused(io.BytesIO(zipped({f"{number}": "" for number in range(11)})))
    refused(tar_of(*(folder_in_tar(str(number)) for number in range(11))))


def test_what_would_fill_the_disk_is_refused(desk, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_UNPACKED_BYTES", 1 << 20)
    refused(io.BytesIO(zipped({"zeros": "\0" * (4 << 20)})))


def test_an_archive_that_climbs_or_links_is_refused(server):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        link = tarfile.TarInfo("code")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    for content in (zipped({"../evil": "x"}), zipped({"/evil": "x"}), made.getvalue(), b"none"):
        answer = server.send_form(LIST, {"manifest": "name: x", "code": content})
        assert answer.status == 422, answer
    assert not [*uploads.uploads_folder().iterdir()]


def test_the_same_upload_is_kept_once_and_an_unused_one_goes_after_a_day(desk):
    def send() -> Path:
        return uploads.folder_of(b"name: x", io.BytesIO(zipped({"run.py": "pass"})))

    folder = send()
    assert send() == folder
    assert sorted(each.name for each in folder.iterdir()) == ["manifest.yml", "run.py"]
    uploads.remove_unused([])
    assert folder.exists()
    old = time.time() - 2 * 24 * 3600
    os.utime(folder, (old, old))
    record: Any = type("Record", (), {"manifest_path": str(folder / "manifest.yml")})
    uploads.remove_unused([record])
    assert folder.exists()
    uploads.remove_unused([])
    assert not folder.exists()


def test_a_tar_that_ends_with_a_zip_is_a_tar(desk):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in (("run.py", b"pass"), ("data.npz", zipped({"inner": "x"}))):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    folder = uploads.folder_of(b"name: x", made)
    assert sorted(each.name for each in folder.iterdir()) == ["data.npz", "manifest.yml", "run.py"]


def test_a_list_or_a_header_that_would_fill_the_memory_is_refused(desk, monkeypatch):
    monkeypatch.setattr(uploads, "_MOST_LISTED_BYTES", 1 << 20)
    refused(io.BytesIO(zipped({f"{number:01000}": "" for number in range(1100)})))
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 2 << 20
    bomb = gzip.compress(header.tobuf() + bytes(header.size), 1)
    refused(io.BytesIO(bomb))


def test_an_archive_that_is_too_deep_is_refused_and_leaves_nothing(server):
    code = zipped({f"{depth * 'a/'}x": "" for depth in range(200, 2000, 200)})
    answer = server.send_form(LIST, {"manifest": "name: x", "code": code})
    assert answer.status == 422 and "deep" in answer.json["detail"], answer
    assert not [*uploads.uploads_folder().iterdir()]


def test_names_that_are_no_text_are_told_apart(desk):
    def sent(name: bytes) -> Path:
        made = tarfile.TarInfo(name.decode(errors="surrogateescape"))
        return uploads.folder_of(b"name: x", tar_of(made))

    assert sent(b"\xff") != sent(b"\xfe")


def test_a_manifest_that_is_too_long_is_not_cut(server):
    long = b"name: x\n" + b"#" * (1 << 20) + b"\nlearners: 2\n"
    refused = server.send_form(LIST, {"manifest": long})
    assert refused.status == 400 and "manifest" in refused.json["detail"]


@pytest.mark.parametrize("said", [
    {"manifest": "\ud800"}, {"manifest": "name: x", "overrides": {"set": {"a": "\ud800"}}},
])  # fmt: skip
def test_half_a_character_is_no_text(server, said):
    assert server.send(LIST, said).status == 400


def test_a_loss_that_is_no_number_is_null(server, desk):
    lost = make_record(site="local", training_id="t-1", state=State.FAILED, loss=float("nan"))
    desk.mine.store.add(lost)
    answer = server.ask(LIST)
    assert answer.status == 200 and answer.json["items"][0]["loss"] is None
    assert b"NaN" not in answer.body


def test_a_number_of_ranks_is_bounded(server, desk):
    desk.mine.store.add(make_record(site="local", training_id="t-1"))
    ranks = ",".join(100 * ["0-9999"])
    answer = server.ask(f"{LIST}/t-1/logs?rank={ranks}")
    assert answer.status == 422 and json.loads(answer.body)["detail"], answer


def test_a_full_disk_is_no_fault_of_the_request(server, desk, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_room(*_: object) -> None:
        raise full

    monkeypatch.setattr(uploads, "_inside", no_room)
    answer = server.send_form(LIST, {"manifest": "name: x", "code": zipped({"a": "b"})})
    assert answer.status == 503 and "df -h" in answer.json["hint"], answer
    monkeypatch.undo()


def test_a_record_that_can_not_be_written_is_asked_for_again(server, desk, monkeypatch):
    desk.mine.store.path = desk.mine.store.path.parent / "full/record.db"
    manifest = {"name": "x", "memory": "64MiB", "time": "1m",
                "framework": {"name": "pytorch", "command": "true"}}  # fmt: skip
    answer = server.send(LIST, {"manifest": manifest}, idempotency_key="once")
    assert answer.status == 503 and answer.headers["retry-after"], answer
