"""What people read of a rehearsal."""

import pytest

from dlctl.cli import costs
from dlctl.contract import Rehearsed
from dlctl.plan.rehearsal import Forecast
from dlctl.service.costs import Rehearsal

FOUND = Rehearsed(
    True, 20, halted_at=6, killed_at=13, total_steps=1_900_000, step_s=0.08757523,
    samples_per_s=730.8002, checkpoint_s=12.3456, checkpoint_bytes=7 * 2**30,
    memory_bytes=3 * 2**30, start_s=15.9, restart_s=21.809,
)  # fmt: skip
NAMES = [f"['optimizer']['state']['state'][{n}]['exp_avg']" for n in range(40)]


@pytest.mark.parametrize("found", [
    FOUND,
    Rehearsed(False, 20, NAMES, largest_difference=1.25e-07, killed_at=13, halted_at=6),
])  # fmt: skip
def test_the_answer_fits_into_80_columns(found, capsys):
    whole = Forecast(46.2, 13, 184.8, 739.2, 14 * 24.0) if found is FOUND else None
    costs._print(Rehearsal("t-1", found, whole, 2**34))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    told = dict(line.split("  ", 1) for line in lines)
    if found is FOUND:
        assert told["restarts"].strip() == "bit for bit" and "differing" not in told
        assert "46.2 h in 13 jobs, 185 node-hours, 739 GPU-hours" in told["training"]
        assert "14 d is enough" in told["time"]
    else:
        assert "NOT bit for bit: 40 parts of the state differ, by at most 1.25e-07" in lines[0]


def test_a_time_that_is_too_short_is_told():
    assert "NOT enough" in costs._time(Forecast(9.0, 1, 9.0, 0.0, 2.0))
