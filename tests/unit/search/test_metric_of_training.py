"""Which value of a training's metrics is the result of a trial."""

from __future__ import annotations

import json

import pytest

from search.tasks.training import Measured


def measured(folder, rows, told=0):
    """Return what is new after some rows, and the measured as a whole."""
    path, found = folder / "1-0-program.jsonl", Measured(folder, "accuracy")
    for part in (rows[:told], rows[told:]):
        with path.open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in part)
        news = found.news()
    return news, found


@pytest.mark.parametrize(("rows", "value"), [
    ([{"accuracy": 0.1}, {"accuracy": 0.2}], 0.2),
    ([{"accuracy": 0.9, "group": "validation"}, {"accuracy": 0.2}], 0.9),
    ([{"validation_accuracy": 0.7}, {"accuracy": 0.2}], 0.7),
    ([{"validation_accuracy": 0.7}, {"validation_accuracy": 0.8}, {"accuracy": 0.2}], 0.8),
    ([{"validation_accuracy": float("nan")}, {"accuracy": 0.2}], 0.2),
    ([{"best_validation_accuracy": 0.7}, {"accuracy": 0.2}], 0.2),
])  # fmt: skip
def test_a_value_of_validation_comes_before_one_of_training(tmp_path, rows, value):
    """The built-in loop writes it as `validation_accuracy`, a program may name the group."""
    assert measured(tmp_path, rows)[1].values["accuracy"] == value


@pytest.mark.parametrize(("rows", "told", "value"), [
    ([{"accuracy": 0.1}, {"accuracy": 0.2}], 1, 0.2),
    ([{"accuracy": 0.1}, {"validation_accuracy": 0.7}], 1, 0.7),
    ([{"validation_accuracy": 0.7}, {"accuracy": 0.2, "loss": 1.0}], 1, None),
    ([{"accuracy": 0.7, "group": "validation"}, {"accuracy": 0.2}], 1, None),
    ([{"validation_accuracy": 0.7}, {"accuracy": 0.2}, {"validation_accuracy": 0.8}], 1, 0.8),
])  # fmt: skip
def test_a_report_after_a_validation_never_tells_a_value_of_training(tmp_path, rows, told, value):
    """A strategy that ends trials early compares them, and must compare the same thing."""
    found, _ = measured(tmp_path, rows, told)
    assert found.get("accuracy") == value
    assert found.get("loss") == next((row["loss"] for row in rows[told:] if "loss" in row), None)


def test_training_and_validation_have_names_of_their_own(tmp_path):
    """Of two groups in one report the later one was the trial's loss."""
    rows = [{"loss": 1.0, "group": "train"}, {"loss": 3.0, "accuracy": 0.6, "group": "val"},
            {"loss": 2.0, "group": "train"}, {"loss": 9.0, "group": "test"}]  # fmt: skip
    assert measured(tmp_path, rows)[0] == {
        "loss": 2.0, "validation_loss": 3.0, "validation_accuracy": 0.6, "accuracy": 0.6,
        "test_loss": 9.0,
    }  # fmt: skip


@pytest.mark.parametrize(("metric", "value"), [
    ("val_acc", 0.9), ("val/acc", 0.9), ("validation_acc", 0.9), ("test_acc", 0.8),
    ("train_loss", 2.0),
])  # fmt: skip
def test_a_metric_is_found_by_the_name_that_the_program_prints(tmp_path, metric, value):
    """Each trial of a search for `val_acc` was trained, and failed: it was `validation_acc`."""
    rows = [{"loss": 2.0}, {"acc": 0.9, "group": "validation"}, {"acc": 0.8, "group": "test"}]
    path, found = tmp_path / "1-0-log.jsonl", Measured(tmp_path, metric)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "1-0-node.jsonl").write_text('{"cpu_percent": 5.0}\n')
    assert found.news()[metric] == found.values[metric] == value
    assert found.of_nodes == {"cpu_percent"}


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path):
    path, found = tmp_path / "1-0.jsonl", Measured(tmp_path, "loss")
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert found.news() == {"loss": 2.0}
    assert found.news() == {}
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    assert found.news() == {"loss": 1.0}
    assert (found.step, found.values) == (2, {"loss": 1.0})
