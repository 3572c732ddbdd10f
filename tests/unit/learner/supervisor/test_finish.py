"""The lines printed while an attempt runs, and the end of an attempt."""

import errno
import io
import os
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Evidence, State, Verdict, VerdictKind
from dlctl.contract.programs.verdict_rules import GO_ON
from learner.job.directives import Outside, is_gone, is_there
from learner.job.outcome import Outcome, failed
from learner.supervisor.control import Control
from learner.supervisor.finish import any_checkpoints, crash_outcome, leave, say
from learner.system.signals import HaltFlag
from psrv.push.waiting import to_standard_error


class FullDisk(io.StringIO):
    def write(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_no_hint_offers_a_checkpoint_that_does_not_exist(tmp_path):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    outcome = failed(VerdictKind.UNKNOWN, "It was killed.", GO_ON.format(id="t-1"))

    def hint():
        leave(tmp_path, 1, outcome)
        verdict = contract.read_record(Verdict, tmp_path / contract.verdict_file(1))
        assert verdict is not None
        return verdict.hint

    assert hint() == "Resume from the beginning (there is no checkpoint): dlctl resume t-1"
    (tmp_path / contract.CHECKPOINTS).mkdir()
    (tmp_path / contract.CHECKPOINTS / "last.pt").write_text("w")
    assert hint() == "Resume from the newest checkpoint: dlctl resume t-1"


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path):
    """A failed print of "restarting it" is no reason for the supervisor to end all learners."""
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    evidence = Evidence("learner", 1, "n1", 1, None, ["no space left"])
    with redirect_stdout(FullDisk()), redirect_stderr(FullDisk()):
        say("learner 1 was killed by signal 9: restarting it in 0.5 s.")
        to_standard_error("waits for learner 1")
        assert (
            leave(tmp_path, 1, failed(VerdictKind.UNKNOWN, "It failed.", "Look.", evidence))[0] == 1
        )
    assert contract.read_record(Verdict, tmp_path / contract.verdict_file(1)) is not None


def test_a_name_that_the_sites_locale_lacks_ends_no_supervisor(tmp_path):
    """A training that had completed was told as one whose job was killed."""
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    (tmp_path / contract.CODE).mkdir()
    (tmp_path / contract.CODE / "mödel-中.pt").write_text("w")
    printed = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(printed, "latin-1", write_through=True)):
        leave(tmp_path, 1, failed(VerdictKind.UNKNOWN, "It failed \udcff.", "Look."))
        assert "m\xf6del-\\u4e2d.pt: 1 B" in printed.getvalue().decode("latin-1")
    assert contract.read_record(Verdict, tmp_path / contract.verdict_file(1)) is not None


@contextmanager
def no_answer(folder, number, times=1000):
    """Make a folder's file system fail for a moment, as while a mount or a ticket is renewed."""
    stat, left = os.stat, iter(range(times))

    def fail(path, *args, **more):
        if str(path).startswith(str(folder)) and next(left, None) is not None:
            raise OSError(number, os.strerror(number))
        return stat(path, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", fail)
        yield


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_brief_file_system_failure_is_neither_a_request_nor_an_end(tmp_path, number):
    """`Path.exists` raises in that case: the supervisor once died of it and left no verdict."""
    plan = make_plan(job_dir=str(tmp_path))
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    control, outside = Control(tmp_path, plan, HaltFlag()), Outside(tmp_path, 1, 60.0, 0)
    with no_answer(tmp_path, number):
        assert control.request() is None and not control.gone
        assert not outside.expelled() and not outside.abandoned()
        assert not is_there(tmp_path) and not is_gone(tmp_path)
    with no_answer(tmp_path, number, times=3):
        assert leave(tmp_path, 1, Outcome(State.COMPLETED, VerdictKind.NONE, "It ended."))[0] == 0
    assert contract.read_record(Verdict, tmp_path / contract.verdict_file(1)) is not None
    assert is_there(tmp_path) and is_gone(tmp_path / "other")


def test_checkpoints_that_cannot_be_listed_may_exist(tmp_path, monkeypatch):
    assert not any_checkpoints(tmp_path)
    (tmp_path / contract.CHECKPOINTS).mkdir()
    assert not any_checkpoints(tmp_path)

    def fail(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    for name in ("listdir", "scandir"):  # the supervisor once died of this after a good end
        monkeypatch.setattr(os, name, fail)
    assert any_checkpoints(tmp_path)


def test_a_supervisor_that_a_full_disk_ends_says_so():
    outcome = crash_outcome(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "t-1")
    assert outcome.kind is VerdictKind.DISK_FULL
    assert "file system is full" in outcome.reason


def test_a_fault_of_the_supervisor_itself_is_told_as_one():
    try:
        raise ValueError("no such thing")  # noqa: EM101, TRY301
    except ValueError as error:
        outcome = crash_outcome(error, "t-1")
    assert outcome.kind is VerdictKind.INTERNAL
    assert "ValueError: no such thing (test_finish.py:" in outcome.reason


def test_a_name_with_a_line_break_makes_no_line_of_the_job_log(capsys):
    say("  out/ne\nw\x1b[31m: 4 B; not in RESULT_DIR")
    assert capsys.readouterr().out.partition(" ")[2] == (
        "  out/ne\\nw\\x1b[31m: 4 B; not in RESULT_DIR\n"
    )
