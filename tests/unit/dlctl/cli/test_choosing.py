"""Which trainings a command is about."""

from __future__ import annotations

from pathlib import Path

import pytest
from login_side import session_of

from dlctl.cli.choosing import do_each
from dlctl.contract import State
from dlctl.errors import HasEnded, Misused
from dlctl.record import Record, RecordStore
from dlctl.service.choose import Filter, chosen
from dlctl.service.client import Client


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
    [("digits*", [], "01"), ("digits", [], "0"), ("*-2", [], "2"), (None, ["training"], "02"),
     (None, ["TRAINING", "COMPLETED"], "012"), ("digits*", ["COMPLETED"], "1"), ("none", [], "")],
)  # fmt: skip
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
    with pytest.raises(Misused, match="either ids, or --name, --state and --tag"):
        chosen(store, ["words-2"], Filter("*"))


def test_a_word_that_is_no_state_is_refused():
    with pytest.raises(Misused, match="'TRAINED' is no state; there are"):
        Filter(None, ["TRAINED"])


def test_what_has_ended_meanwhile_is_a_failure_only_if_it_was_named(store, monkeypatch, capsys):
    def cancel_all(_session, records, _store):
        return [HasEnded(f"{each.training_id} is COMPLETED") for each in records]

    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    mine, wanted = Client(store), Filter("words*")
    do_each(mine, chosen(store, None, wanted), cancel_all, False, wanted)
    assert "words-2 is COMPLETED" in capsys.readouterr().err
    with pytest.raises(HasEnded, match="words-2 is COMPLETED"):
        do_each(mine, chosen(store, ["words-2"], Filter()), cancel_all, False, Filter())
