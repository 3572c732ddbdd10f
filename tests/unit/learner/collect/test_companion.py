"""The watchdog's side: the collector starts with the learner and never holds anything up."""

import os
import signal
from pathlib import Path

import pytest
from node_job import Job, alive, wait_until

from dlctl.contract import State
from learner.collect import companion as companion_module
from learner.collect.companion import Companion
from learner.system import processes


def collectors(directory):
    """Return the collectors of a job directory, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"learner.collect" in words and str(directory).encode() in words:
            found.append(int(path.name))
    return found


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path, f"until test -e {tmp_path}/go; do sleep 0.05; done")


def test_a_killed_watchdog_takes_its_collector_with_it(job):
    process = job.start_afresh()
    wait_until(lambda: collectors(job.dir))
    (collector,) = collectors(job.dir)
    status = Path(f"/proc/{collector}/status").read_text()
    watchdog = int(status.split("PPid:")[1].split()[0])
    assert os.getpgid(collector) == collector, "a signal to the job's group would reach it"
    os.kill(watchdog, signal.SIGKILL)
    wait_until(lambda: not alive(collector))
    assert job.finish(process).state is State.FAILED


@pytest.mark.first("dies")
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_collector_that_dies_or_hangs_changes_nothing(tmp_path, job, fault):
    process = job.start_afresh()
    wait_until(lambda: collectors(job.dir))
    (collector,) = collectors(job.dir)
    os.kill(collector, fault)
    (tmp_path / "go").touch()
    assert job.finish(process).state is State.COMPLETED
    assert not alive(collector)


def test_a_collector_that_can_not_be_started_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(companion_module.sys, "executable", str(tmp_path / "no-python"))
    companion = Companion(tmp_path, 1, 0, {})
    companion.start()
    assert companion.pid == 0
    companion.end()


def test_it_gets_of_the_learners_environment_only_what_it_needs(tmp_path, monkeypatch):
    program = tmp_path / "python"
    new, done = tmp_path / "env.new", tmp_path / "env"
    program.write_text(f"#!/bin/sh\nenv > {new}\nmv {new} {done}\ncat\n")
    program.chmod(0o755)
    monkeypatch.setattr(companion_module.sys, "executable", str(program))
    learner = {"SECRET": "x", "LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "2"}
    companion = Companion(tmp_path, 1, 0, learner)
    companion.start()
    wait_until(done.exists)
    assert companion.pid not in processes.descendants(os.getpid(), frozenset({companion.pid}))
    companion.end()
    assert not alive(companion.pid)
    lines = done.read_text().splitlines()
    assert {"LOCAL_RANK=3", "CUDA_VISIBLE_DEVICES=2"} <= set(lines)
    assert not any(line.startswith("SECRET=") for line in lines)
