"""What `dlctl fetch` tells of what came."""

from login_side import make_record

from dlctl.cli.fetching.fetch import _tell_fetched
from dlctl.contract import State
from dlctl.outputs.fetch import Fetched


def test_of_several_trainings_the_one_that_files_are_missing_of_is_named(capsys):
    record = make_record(training_id="odd-e3k9367e", state=State.FAILED)
    came = Fetched(record.training_id, "results", [], complete=False, left_out=["pipe"], kept=["a"])
    _tell_fetched(record, came)
    told = capsys.readouterr().err.splitlines()
    assert all("odd-e3k9367e" in line for line in told) and len(told) == 3
    assert "so far" not in told[-1]  # nothing more will come of a training that has failed
