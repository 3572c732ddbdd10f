"""`dlctl dashboard` as people start and end it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dlctl.contract import State
from dlctl.record import Record, RecordStore

ONE = "digits-3k9f"


@pytest.fixture
def known(trainings: RecordStore, tmp_path: Path) -> None:
    job = tmp_path / "job"
    (job / "metrics").mkdir(parents=True)
    (job / "metrics" / "1-0.jsonl").write_text('{"step": 3, "time": 1790000000, "loss": 0.5}\n')
    trainings.add(Record(
        ONE, "digits", "local", str(tmp_path), str(job), "2026-01-01T10:00:00+00:00",
        state=State.COMPLETED))  # fmt: skip


def test_it_prints_where_it_is_and_ends_at_ctrl_c(xdg, known):
    command = [sys.executable, "-m", "dlctl", "dashboard", "3k9f", "--no-browser"]
    env = {name: value for name, value in xdg.env.items() if name != "PYTHONUNBUFFERED"}
    running = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)  # fmt: skip
    assert running.stdout is not None
    url = running.stdout.readline().strip()
    page, _, token = url.partition("?token=")
    assert page.endswith(f"/#/training/{ONE}")
    request = urllib.request.Request(
        page.partition("#")[0] + "api/trainings", headers={"x-dlctl-token": token}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert ONE in answer.read().decode()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "")
    assert "the trainings continue" in err


def test_a_report_is_written_and_no_server_starts(dlctl, known, tmp_path: Path):
    path = tmp_path / "report.html"
    assert dlctl("dashboard", "--export", path, ok=True).stdout.strip() == str(path)
    text = path.read_text()
    assert ONE in text and text.startswith("<!doctype html>")


def test_a_port_that_is_not_free_is_named(dlctl, known):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = dlctl("dashboard", "--no-browser", "--port", port)
    assert done.exit_code == 8
    assert port in done.stderr and "--port" in done.stderr


def test_an_unknown_training_or_site_is_refused(dlctl, known):
    assert dlctl("dashboard", "nobody", "--no-browser").exit_code == 8
    assert dlctl("dashboard", "--site", "nowhere", "--no-browser").exit_code == 4
