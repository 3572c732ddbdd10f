"""What is told while an attempt runs, and when it is left."""

from __future__ import annotations

import errno
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from dlctl import contract
from dlctl.contract import Guilty, State, Verdict
from learner.leaving import leave, say
from psrv.patience import to_standard_error


class FullDisk(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_lines_that_find_no_space_are_lost_and_nothing_else(tmp_path: Path) -> None:
    """The supervisor says that it starts a learner again: that is no reason to end them all."""
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    guilty = Guilty("learner", 1, "n1", 1, None, ["no space left"])
    with redirect_stdout(FullDisk()), redirect_stderr(FullDisk()):
        say("learner 1 was killed by signal 9: starting it again in 0.5 s.")
        to_standard_error("waits for learner 1")
        assert leave(tmp_path, Verdict(1, "7", State.FAILED, "It failed.", "Look.", guilty)) == 1
    assert contract.read_record(Verdict, tmp_path / contract.verdict_file(1)) is not None
