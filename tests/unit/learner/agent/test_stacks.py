"""What the watchdog saves of a learner's processes before they are ended."""

from __future__ import annotations

import subprocess
import sys

import pytest
from repository import REPOSITORY

from learner.agent.stacks import Stacks

REGISTERED = """\
import sys, time
sys.path.insert(0, {path!r})
from learner.job.stacks import register
register()
def stall():
    print("ready", flush=True)
    time.sleep(600)
stall()
"""


@pytest.fixture
def started():
    """Start a program, and return it once it has printed a line."""
    running = []

    def start(program, *arguments, **env):
        argv = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env)
        running.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_blocked_program_shows_its_stack_and_lives_on(tmp_path, started):
    own, saved = tmp_path / "own.txt", tmp_path / "stacks/0.txt"
    program = REGISTERED.format(path=str(REPOSITORY))
    pid = started(program, DLCTL_STACKS_FILE=str(own))
    for _ in range(2):  # may be asked again
        Stacks(own, saved).save([pid])
        text = saved.read_text()
        assert text.count("in stall") == 1, text
        assert f"== process {pid}: " in text


def test_of_other_programs_linux_tells_and_secrets_are_masked(tmp_path, started):
    program = "import time; print('ready', flush=True); time.sleep(600)"
    pid = started(program, "--token=hunter2")
    Stacks(tmp_path / "own.txt", tmp_path / "stacks/0.txt").save([pid, 2**22 + 1], ["hunter2"])
    text = (tmp_path / "stacks/0.txt").read_text()
    assert f"== process {pid}: " in text and "1 threads" in text
    assert "--token=***" in text and "hunter2" not in text


def test_py_spy_is_asked_where_it_is_installed(tmp_path, started, monkeypatch):
    spy = tmp_path / "py-spy"
    spy.write_text('#!/bin/sh\necho "Python stack of $3 by $1"\n')
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    pid = started("import time; print('ready', flush=True); time.sleep(600)")
    Stacks(tmp_path / "own.txt", tmp_path / "stacks/0.txt").save([pid])
    assert f"Python stack of {pid} by dump" in (tmp_path / "stacks/0.txt").read_text()
