"""What `dlctl fetch` and `dlctl rehearse` tell."""

from dataclasses import replace

import pytest
from login_side import make_record

from dlctl.cli import costs
from dlctl.cli.fetch import _tell_fetched
from dlctl.contract import Amount, Made, OutputPlace, Rehearsed, State
from dlctl.outputs.fetch import Fetched
from dlctl.plan.rehearsal import Forecast
from dlctl.service.costs import Rehearsal


def test_of_several_trainings_the_one_that_files_are_missing_of_is_named(capsys):
    record = make_record(training_id="odd-e3k9367e", state=State.FAILED)
    came = Fetched(record.training_id, "results", [], complete=False, left_out=["pipe"], kept=["a"])
    _tell_fetched(record, came)
    told = capsys.readouterr().err.splitlines()
    assert all("odd-e3k9367e" in line for line in told) and len(told) == 3
    assert "so far" not in told[-1]  # nothing more will come of a training that has failed


def test_what_else_a_training_has_made_is_named_with_the_command_that_brings_it(capsys):
    made = Made(Amount(1, 1), Amount(0, 0), [OutputPlace("model.pt", 1, 200)])
    record = make_record(state=State.COMPLETED, made=made, fetched_attempt=1)
    came = Fetched(record.training_id, "results", ["r.txt"], complete=True)
    _tell_fetched(record, came)
    told = capsys.readouterr().err
    assert told == (
        "t-1: not fetched: output (model.pt: 200 B; not in RESULT_DIR) (dlctl fetch output t-1)\n"
    )
    for other in (replace(record, output_fetched_attempt=1), replace(record, state=State.TRAINING)):
        _tell_fetched(other, came)
    assert not capsys.readouterr().err


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


def test_a_time_that_is_too_short_is_told(capsys):
    costs._print(Rehearsal("t-1", FOUND, Forecast(9.0, 1, 9.0, 0.0, 2.0), 2**34))
    assert "2 h is NOT enough" in capsys.readouterr().out
