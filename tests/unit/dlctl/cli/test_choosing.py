"""Which trainings a command is about."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from login_side import session_of

from dlctl import lifecycle
from dlctl.contract import State
from dlctl.errors import HasEnded, Misused
from dlctl.manifest.overrides import Overrides
from dlctl.record import Record, RecordStore
from dlctl.search import start, workers
from dlctl.service import verbs
from dlctl.service.client import Client, Filter, chosen
from dlctl.tell import Tell


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    made = RecordStore(tmp_path / "record.db")
    for number, (name, state) in enumerate(
        [("digits", State.TRAINING), ("digits-big", State.COMPLETED), ("words", State.TRAINING)]
    ):
        tags = ["first"] * (number < 2) + ["big"] * (number == 1)
        made.add(Record(f"{name}-{number}", name, "local", str(tmp_path), "", "", state=state,
                        tags=tags))  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("name", "states", "tags", "numbers"),
    [("digits*", [], [], "01"), ("digits", [], [], "0"), ("*-2", [], [], "2"),
     (None, ["training"], [], "02"), (None, ["TRAINING", "COMPLETED"], [], "012"),
     ("digits*", ["COMPLETED"], [], "1"), ("none", [], [], ""), (None, [], ["first"], "01"),
     (None, [], ["first", "big"], "1"), (None, [], ["none"], "")],
)  # fmt: skip
def test_those_that_fit_are_meant(store, name, states, tags, numbers):
    found = chosen(store, None, Filter(name, states, tags))
    assert [record.training_id[-1] for record in found] == list(numbers)


def test_ids_are_meant_alone(store):
    assert [r.name for r in chosen(store, ["words-2", "digits-0"], Filter())] == ["words", "digits"]
    with pytest.raises(Misused, match="either ids, or --name, --state and --tag"):
        chosen(store, ["words-2"], Filter("*"))
    with pytest.raises(Misused, match="'TRAINED' is no state; there are"):
        Filter(None, ["TRAINED"])


def test_what_has_ended_meanwhile_is_a_failure_only_if_it_was_named(store, monkeypatch):
    def cancel_all(_session, records, _store):
        return [HasEnded(f"{each.training_id} is COMPLETED") for each in records]

    class Notes(Tell):
        def note(self, text):
            noted.append(text)

    noted = []
    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    monkeypatch.setattr(lifecycle, "cancel_all", cancel_all)
    done = verbs.end(Client(store, Notes()), "cancel", None, Filter("words*"))
    assert noted == ["words-2 is COMPLETED"] and not done.failures
    done = verbs.end(Client(store, Notes()), "cancel", ["words-2"], Filter())
    assert [each.message for each in done.failures] == noted == ["words-2 is COMPLETED"]


def test_the_workers_of_a_search_end_with_it_whatever_command_ends_it(store, monkeypatch):
    ended = []
    store.add(Record("found-3", "found", "local", "", "", "", state=State.TRAINING,
                     is_search=True))  # fmt: skip
    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    monkeypatch.setattr(workers, "end_workers", lambda _, each: ended.append(each.training_id))
    for verb in ("halt", "cancel"):
        monkeypatch.setattr(lifecycle, f"{verb}_all", lambda _, records, __: list(records))
        verbs.end(Client(store), verb, ["words-2", "found-3"], Filter())
    assert ended == ["found-3"] * 2


def test_a_resumed_search_gets_the_resources_that_were_asked_for(store, monkeypatch):
    """`dlctl resume SEARCH --time 2h` went on with the old limit, and said nothing."""
    asked = []
    known = Record("found-3", "found", "local", "", "", "", is_search=True)
    monkeypatch.setattr(start, "go_on", lambda *given, **__: asked.append(given[4]) or known)
    for name in ("refresh", "end_workers", "read_pools", "set_pool"):
        monkeypatch.setattr(start, name, lambda *given: [known] if len(given) == 3 else [])
    monkeypatch.setattr(start, "sent_search", lambda *_: nullcontext(SimpleNamespace(
        file=SimpleNamespace(workers=SimpleNamespace(jobs=(1, 1))))))  # fmt: skip
    verbs.resume(None, known, store, overrides=Overrides(time="2h"))
    assert asked == [Overrides(time="2h")]
