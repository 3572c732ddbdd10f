"""What requests bring, and what followers leave."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import subprocess
import tarfile
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import websockets.sync.client
from login_side import make_record
from rest_server import zipped
from zygote import wait_for

from dlctl.contract import State
from dlctl.errors import TransferError
from dlctl.files.listing import SiteFile
from dlctl.serve import follow, results, uploads
from dlctl.serve.problems import NotFound

LIST = "/api/v1/trainings"


def test_a_bomb_of_empty_files_is_refused(desk, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_FILES", 3)
    with pytest.raises(uploads.TooLarge):
        uploads.folder_of(b"name: x", io.BytesIO(zipped(dict.fromkeys("abcd", ""))))


def test_a_manifest_that_is_too_long_is_not_cut(server):
    long = b"name: x\n" + b"#" * (1 << 20) + b"\nlearners: 2\n"
    refused = server.send_form(LIST, {"manifest": long})
    assert refused.status == 400 and "manifest" in refused.json["detail"]


def test_a_position_that_nests_without_end_is_refused(server, desk):
    desk.mine.store.add(make_record(site="local", training_id="t-1", state=State.TRAINING))
    sent = base64.urlsafe_b64encode(zlib.compress(b"[" * 200_000)).decode()
    answer = server.ask(f"{LIST}/t-1/metrics", accept="text/event-stream", last_event_id=sent)
    assert answer.status == 400


def test_the_same_commit_is_the_same_folder(desk, tmp_path, monkeypatch):
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    there = tmp_path / "there"
    there.mkdir()
    (there / "manifest.yml").write_text("name: x\n")

    def git(*words: str) -> str:
        told = subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=there, check=True,
            capture_output=True, text=True,
        )  # fmt: skip
        return told.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    wanted = f"ssh://there{there}", git("rev-parse", "HEAD")
    first = uploads.folder_of(None, git=wanted)
    os.utime(there / "manifest.yml")
    time.sleep(0.01)
    assert uploads.folder_of(None, git=wanted) == first
    assert sorted(each.name for each in first.iterdir()) == [".git", "manifest.yml"]


def test_results_whose_names_are_no_text_are_in_the_zip(desk, monkeypatch):
    files = [SiteFile("caf\udce9.txt", "f", 2, "", ""), SiteFile("b", "f", 2, "", "")]
    monkeypatch.setattr(results, "files_of", lambda *_: ("/there", files))
    monkeypatch.setattr(results, "read_part", lambda *_: iter([b"ab"]))
    call = SimpleNamespace(desk=desk)
    content = b"".join(results.zipped(call, make_record(site="local"), "results"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["caf?.txt", "b"]


def test_each_site_is_looked_at_again_when_somebody_asks(desk, monkeypatch):
    woken: list[str] = []
    now = [1000.0]
    monkeypatch.setattr(desk.live, "wake", woken.append)
    monkeypatch.setattr("dlctl.serve.desk.time", SimpleNamespace(monotonic=lambda: now[0]))
    one, other = (make_record(site=site, state=State.TRAINING) for site in ("one", "other"))
    desk.keep_new([one, other])
    now[0] += 3600
    desk.keep_new([one])
    now[0] += 1
    desk.keep_new([other, one])
    assert woken.count("one") == woken.count("other") == 2


def test_an_older_client_that_leaves_is_followed_no_more(server, desk):
    desk.mine.store.add(make_record(site="local", training_id="t-1", state=State.TRAINING,
                                    job_dir=str(Path("/nowhere"))))  # fmt: skip
    headers = {"authorization": f"Bearer {server.token}"}
    address = f"ws://127.0.0.1:{server.port}/v1/models/t-1/logs"

    def followers() -> list[object]:
        return [each for mine in desk.followers._sites.values() for each in mine]

    with websockets.sync.client.connect(address, additional_headers=headers):
        wait_for(followers)
    wait_for(lambda: not followers())


def test_a_training_that_can_not_be_read_ends_no_other_stream(desk, monkeypatch):
    good, bad = (
        make_record(site="local", training_id=name, state=State.TRAINING, job_dir=f"/no/{name}")
        for name in ("good", "bad")
    )  # fmt: skip

    def take(self, _session, _found):
        if self.look().folder.startswith(bad.job_dir):
            raise TransferError("it can't be read")
        return ["news"]

    monkeypatch.setattr(follow.MetricsSource, "take", take)
    monkeypatch.setattr(follow, "refresh", lambda _session, known, *_: known)

    async def first_of(record) -> object:
        async for batch in desk.followers.follow(record, follow.MetricsSource(record)):
            return batch.pieces
        return None

    async def both() -> list[object]:
        asked = [first_of(record) for record in (bad, good)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:  # this one may have a browser's loop
        refused, pieces = thread.submit(lambda: asyncio.run(both())).result()
    assert isinstance(refused, TransferError) and pieces == ["news"]


def test_a_tar_that_ends_with_a_zip_is_a_tar(desk):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in (("run.py", b"pass"), ("data.npz", zipped({"inner": "x"}))):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    folder = uploads.folder_of(b"name: x", made)
    assert sorted(each.name for each in folder.iterdir()) == ["data.npz", "manifest.yml", "run.py"]


@pytest.mark.parametrize("content", [None, b"123"])
def test_a_file_that_is_shorter_than_it_was_is_not_called_whole(desk, tmp_path, content):
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with desk.open("local") as session, pytest.raises(TransferError, match=r"model\.pt"):
        list(results.read_part(session, str(path), 0, 5))


def test_a_stream_whose_training_was_deleted_says_so(server, desk, monkeypatch):
    desk.mine.store.add(make_record(site="local", training_id="t-1", state=State.TRAINING))
    finds = iter([desk.find])

    async def find(training_id: str):
        for first in finds:
            return await first(training_id)
        raise NotFound("no training 't-1' is known here")

    async def nothing(*_):
        for never in ():
            yield never

    monkeypatch.setattr(desk, "find", find)
    monkeypatch.setattr(desk.followers, "follow", nothing)
    told = server.ask(f"{LIST}/t-1/metrics", accept="text/event-stream")
    assert told.body.startswith(b"event: problem") and b"no training" in told.body
