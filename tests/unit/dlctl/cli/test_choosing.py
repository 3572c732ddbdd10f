"""Which trainings a command is about."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from dlctl.cli.choosing import Filter, chosen
from dlctl.contract import State
from dlctl.record import Record, RecordStore


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    made = RecordStore(tmp_path / "trainings.db")
    for number, (name, state) in enumerate(
        [("digits", State.TRAINING), ("digits-big", State.COMPLETED), ("words", State.TRAINING)]
    ):
        tags = ["first"] * (number < 2) + ["big"] * (number == 1)
        made.add(Record(f"{name}-{number}", name, "local", str(tmp_path), "", "", state=state,
                        tags=tags))  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("name", "states", "numbers"),
    [
        ("digits*", [], "01"),
        ("digits", [], "0"),
        ("*-2", [], "2"),
        (None, ["training"], "02"),
        (None, ["TRAINING", "COMPLETED"], "012"),
        ("digits*", ["COMPLETED"], "1"),
        ("none", [], ""),
    ],
)
def test_those_that_fit_are_meant(store, name, states, numbers):
    found = chosen(store, None, Filter(name, states))
    assert [record.training_id[-1] for record in found] == list(numbers)


@pytest.mark.parametrize(
    ("tags", "numbers"), [(["first"], "01"), (["first", "big"], "1"), (["none"], "")]
)
def test_those_with_all_of_the_tags_are_meant(store, tags, numbers):
    found = chosen(store, None, Filter(tags=tags))
    assert [record.training_id[-1] for record in found] == list(numbers)


def test_ids_are_meant_alone(store):
    assert [r.name for r in chosen(store, ["words-2", "digits-0"], Filter())] == ["words", "digits"]
    with pytest.raises(typer.BadParameter, match="either ids, or --name, --state and --tag"):
        chosen(store, ["words-2"], Filter("*"))


def test_a_word_that_is_no_state_is_refused():
    with pytest.raises(typer.BadParameter, match="'TRAINED' is no state; there are"):
        Filter(None, ["TRAINED"])
