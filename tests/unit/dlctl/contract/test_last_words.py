"""Why a job ended without a verdict, and the space that is kept aside for one."""

import errno
from pathlib import Path

import pytest

from dlctl.contract.programs.verdict_rules import explain
from learner.system.disk_reserve import SIZE_BYTES, Reserve, is_full


@pytest.mark.parametrize(
    ("line", "reason", "hint"),
    [
        (
            "slurmstepd-n1: error: StepId=1.batch exceeded memory limit (529694720 > 209715200), "
            "being killed",
            "more memory than it had asked for (505 MiB; asked for 200 MiB)",
            "--memory SIZE",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "more memory", "--memory"),
        ("slurmstepd: error: *** JOB 7 CANCELLED AT x DUE TO NODE FAILURE ***", "node", "resume"),
        ("slurmstepd: error: *** JOB 7 CANCELLED AT x DUE TO TIME LIMIT ***", "time", "--time"),
        ("dlctl: cat: write error: No space left on device", "full", "delete"),
    ],
)  # fmt: skip
def test_slurms_words_are_understood(line, reason, hint):
    told = explain(["12:00:00 TRAINING: train.py", line, "12:00:01 the last line"], "t-1", "here")
    assert told is not None
    assert reason in told.reason
    assert hint in told.hint
    assert "dlctl resume t-1" in told.hint


def test_words_without_a_cause_explain_nothing():
    assert (
        explain(
            ["12:00:00 TRAINING: train.py", "slurmstepd: *** JOB 7 CANCELLED ***"], "t-1", "here"
        )
        is None
    )
    assert explain([], "t-1", "here") is None


def test_a_reserve_takes_space_until_it_is_freed(tmp_path):
    file = tmp_path / "new folder/reserve"
    reserve = Reserve(file)
    assert file.stat().st_size == SIZE_BYTES
    reserve.free()
    reserve.free()
    assert not file.exists()


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_disk_is_full_when_nothing_can_be_written(tmp_path, monkeypatch, number, full):
    assert not is_full(tmp_path)
    assert list(tmp_path.iterdir()) == []

    def refuse(self, data):
        raise OSError(number, "refused")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    Reserve(tmp_path / "reserve")
    assert is_full(tmp_path) is full
