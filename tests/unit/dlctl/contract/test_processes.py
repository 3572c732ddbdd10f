from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from dlctl.contract.ground import processes

LEAVES = "sleep 600 & echo $!; exit 3"
STAYS = "trap '' TERM; sleep 600 & echo $!; wait"


@pytest.mark.parametrize(
    ("program", "leave_s", "code"), [(LEAVES, 60.0, 3), (STAYS, 0.1, -signal.SIGKILL)]
)
def test_a_group_gets_time_to_leave_and_nothing_of_it_stays(
    program: str, leave_s: float, code: int, wait_until: Any
) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", program], start_new_session=True, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        beside = int(child.stdout.readline())
        assert processes.end_child(child, leave_s, ask=code < 0, group=True) == code
        wait_until(lambda: not processes.started(beside))
