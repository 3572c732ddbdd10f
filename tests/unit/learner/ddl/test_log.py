"""`ddl.log`: lines for the metrics, a report for the watchdog, nothing outside a job."""

import json
import math
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from dlctl.contract.measured.bins import decode
from learner import ddl
from learner.ddl import measured as module


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("DLCTL_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("DLCTL_ATTEMPT", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("DLCTL_PROGRESS_FILE", str(tmp_path / "progress.json"))
    module._logs.clear()
    yield tmp_path
    module._logs.clear()


def lines(job, rank=0):
    path = job / f"metrics/2-{rank}-program.jsonl"
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def test_values_become_lines_and_a_report(job):
    ddl.log(10, loss=torch.tensor(0.5), epoch=1)
    ddl.log(20, {"top-1": 0.25}, group="test", done=0.5)
    first, second = lines(job)
    assert {k: v for k, v in first.items() if k != "time"} == {"step": 10, "epoch": 1, "loss": 0.5}
    assert (second["group"], second["top-1"], "epoch" in second) == ("test", 0.25, False)
    told = json.loads((job / "progress.json").read_text())
    assert (told["step"], told["metrics"]) == (10, {"loss": 0.5})  # twice a second at most


@pytest.mark.slow
def test_the_last_step_is_reported_when_the_program_ends(job):
    program = """if True:
        import os, sys
        from learner import ddl
        ddl.log(1, loss=2.0)
        ddl.log(2, loss=0.125)
        ddl.log(2, accuracy=0.5, group="test")
        if not os.fork():
            sys.exit(0)
        os.wait()
        print(open(os.environ["DLCTL_PROGRESS_FILE"]).read())"""
    run = [sys.executable, "-c", program]
    before = subprocess.run(run, check=True, capture_output=True).stdout
    told = json.loads((job / "progress.json").read_text())
    assert (json.loads(before)["step"], told["step"]) == (1, 2)
    assert told["metrics"] == {"loss": 0.125, "test_accuracy": 0.5}


def test_steps_that_begin_anew_with_each_epoch_are_said_once(job, capsys):
    for epoch in (1, 2, 3):
        for step in (1, 2):
            ddl.log(step, loss=0.5, epoch=epoch)
            ddl.log(step, loss=0.5, epoch=epoch, group="test")
    ddl.log(3, accuracy=0.5)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "step 1 of 'loss' comes after step 2" in told


def test_a_program_without_epochs_reports_none(job):
    ddl.log(10, loss=0.5)
    assert json.loads((job / "progress.json").read_text())["epoch"] is None


def test_names_of_the_line_itself_are_kept_apart_and_nan_is_null(job):
    ddl.log(1, {"step": 7, "group": 10**400}, loss=math.nan)
    (line,) = lines(job)
    assert (line["step"], line["step_"], line["group_"], line["loss"]) == (1, 7.0, None, None)


@pytest.mark.parametrize("every_learner", [False, True])
def test_other_learners_log_only_if_asked(job, monkeypatch, every_learner):
    monkeypatch.setenv("RANK", "1")
    ddl.log(1, loss=1.0, every_learner=every_learner)
    assert len(lines(job, rank=1)) == every_learner
    assert lines(job) == []


def test_outside_a_job_nothing_is_logged(tmp_path, monkeypatch):
    for name in ("DLCTL_JOB_DIR", "DLCTL_ATTEMPT", "DLCTL_PROGRESS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    module._logs.clear()
    ddl.log(1, loss=1.0)
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_and_torch_are_numbers(job):
    ddl.log(np.int64(5), epoch=np.int32(1), done=np.float32(0.5), loss=np.float32(0.25))
    ddl.log(torch.tensor(6), loss=1, done=math.nan)
    ddl.log(7.0, {"lone \udc80": 1.0})
    assert [(line["step"], line.get("loss")) for line in lines(job)] == [
        (5, 0.25), (6, 1.0), (7, None),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [None, "much", [1]])
def test_an_error_names_the_value_that_is_no_number(job, value):
    with pytest.raises((TypeError, ValueError), match="ddl.log: 'loss' is no number: "):
        ddl.log(1, accuracy=0.5, loss=value)


def test_threads_log_side_by_side(job, monkeypatch):
    class Slow(module._Log):
        def __init__(self, env):
            time.sleep(0.05)  # so that all of them begin
            super().__init__(env)

    monkeypatch.setattr("learner.job.metrics.FROM_BYTES", 2000)
    monkeypatch.setattr(module, "_Log", Slow)

    def work(name):
        for step in range(300):
            ddl.log(step, {name: float(step)})

    threads = [threading.Thread(target=work, args=(f"loss{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(job)) == 1200
    stretches = decode((job / "metrics/2-0-program.bins").read_bytes())
    assert sum(stretch.lines for stretch in stretches) == 1200
    assert {name for stretch in stretches for _, name in stretch.series} == {
        f"loss{n}" for n in range(4)
    }
