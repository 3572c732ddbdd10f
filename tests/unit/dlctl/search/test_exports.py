"""A search as CSV, Parquet and a study of Optuna's."""

import csv
import io

import optuna
import pyarrow.parquet as parquet
import pytest
from made_search import SPACE, spec_of, trials_of
from optuna.storages.journal import JournalFileBackend

from dlctl.contract.search import Parameter
from dlctl.errors import ResultsError
from dlctl.search.exports import print_csv, write_optuna, write_parquet
from dlctl.search.trials import TrialRow, Trials


def odd():
    """A search whose choices are of several types, lists and texts with commas among them."""
    space = [Parameter("layers", "choice", choices=[[1, 2], [3]]),
             Parameter("mixed", "choice", choices=[1, "a,\n\"b\""]),
             Parameter("on", "choice", choices=[True, False])]  # fmt: skip
    rows = [TrialRow(0, "a", {"layers": [1, 2], "mixed": 'a,\n"b"', "on": True}, "SUCCEEDED", 1.5),
            TrialRow(1, "b", {"layers": [3], "mixed": 1, "on": False})]  # fmt: skip
    return Trials(spec_of(space=space), rows, {}, [0])


def test_csv_has_a_row_for_each_trial_and_a_column_for_each_parameter():
    found, text = trials_of(12, 9), io.StringIO()
    print_csv(found, text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [int(row["trial"]) for row in rows] == list(range(12))
    for row, trial in zip(rows, found.rows, strict=True):
        for each in SPACE:
            value = trial.point.get(each.name)
            assert row[f"point.{each.name}"] == ("" if value is None else str(value))
        assert row["metric"] == ("" if trial.metric is None else repr(trial.metric))
    text = io.StringIO()
    print_csv(odd(), text)
    (first, _) = csv.DictReader(io.StringIO(text.getvalue()))
    assert (first["point.layers"], first["point.mixed"]) == ("[1, 2]", 'a,\n"b"')


def test_parquet_keeps_types(tmp_path):
    found = trials_of(12, 9)
    assert write_parquet(tmp_path / "t.parquet", found) == 12
    rows = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["metric"] for row in rows] == [row.metric for row in found.rows]
    assert [row["point.layers"] for row in rows] == [row.point["layers"] for row in found.rows]
    assert [row["point.momentum"] for row in rows] == [r.point.get("momentum") for r in found.rows]
    write_parquet(tmp_path / "odd.parquet", odd())
    rows = parquet.read_table(tmp_path / "odd.parquet").to_pylist()
    assert [(r["point.layers"], r["point.mixed"], r["point.on"]) for r in rows] == [
        ("[1, 2]", 'a,\n"b"', True), ("[3]", "1", False),
    ]  # fmt: skip
    write_parquet(tmp_path / "none.parquet", trials_of(0))
    assert parquet.read_table(tmp_path / "none.parquet").num_rows == 0


@pytest.mark.parametrize("name", ["study.log", "study.db"])
def test_optuna_opens_the_study(tmp_path, name):
    found = trials_of(12, 9, failed=0.3)
    assert write_optuna(tmp_path / name, "made", found) == 12
    if name.endswith(".db"):
        storage = f"sqlite:///{tmp_path / name}"
    else:
        journal = JournalFileBackend(str(tmp_path / name))
        storage = optuna.storages.JournalStorage(journal)
    study = optuna.load_study(study_name="made", storage=storage)
    states = {"SUCCEEDED": "COMPLETE", "FAILED": "FAIL", "": "WAITING"}
    assert [t.state.name for t in study.trials] == [states[r.outcome] for r in found.rows]
    assert (study.best_trial.number, study.best_value) == (found.best.number, found.best.metric)
    assert study.best_trial.params == found.best.point
    assert study.best_trial.intermediate_values == dict(found.reports[found.best.number])
    assert study.best_trial.datetime_complete.timestamp() == found.best.ended_at
    assert study.ask().number == 9, "what has not ended is enqueued"
    with pytest.raises(ResultsError, match="exists, and a study is not written over"):
        write_optuna(tmp_path / name, "made", found)


def test_optuna_takes_choices_of_any_kind(tmp_path):
    write_optuna(tmp_path / "odd.db", "odd", odd())
    study = optuna.load_study(study_name="odd", storage=f"sqlite:///{tmp_path / 'odd.db'}")
    assert study.best_trial.params == {"layers": "[1, 2]", "mixed": 'a,\n"b"', "on": True}
