"""What `dlctl fetch` tells of what came."""

from dataclasses import replace

from login_side import make_record

from dlctl.cli.fetch import _tell_fetched
from dlctl.contract import Amount, Made, OutputPlace, State
from dlctl.outputs.fetch import Fetched


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
