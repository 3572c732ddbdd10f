from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from dlctl.contract.ground import processes

STAYS = "trap '' TERM; sleep 600 & echo $!; wait"


@pytest.mark.parametrize(("program", "code"), [("cat; exit 3", 3), (STAYS, -signal.SIGKILL)])
def test_a_group_gets_time_to_leave_and_nothing_of_it_stays(
    program: str, code: int, wait_until: Any
) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", f"sleep 600 & echo $!; {program}"], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        beside = int(child.stdout.readline())
        assert processes.end_child(child, 0.5, ask=code < 0, group=True) == code
        wait_until(lambda: not processes.started(beside))
