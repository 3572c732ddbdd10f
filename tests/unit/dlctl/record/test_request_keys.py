"""A request with a key means the same trainings, at any time and from any process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dlctl.errors import Misused, RecordError, SubmitRejected, TransportTimeout
from dlctl.lifecycle.many import Sent
from dlctl.record import Record, RecordStore
from dlctl.record.batches import Key, KeyTaken, begin, broken_off, earlier_request, finish

KEY = Key("night-17", "digest")
RECORD = Record("one-22222222", "one", "local", "/here", "/there", "2026-11-27T00:00:00+00:00")


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "record.db")


def test_a_key_is_remembered_after_the_end_of_its_request(store):
    assert earlier_request(store, KEY) is None
    finish(store, begin(store, "command", [RECORD], KEY))
    assert earlier_request(store, KEY).records == [RECORD]
    assert broken_off(store, "command") is None
    with pytest.raises(KeyTaken, match="night-17"):
        earlier_request(store, replace(KEY, body="another"))
    with pytest.raises(KeyTaken):
        begin(store, "command", [replace(RECORD, training_id="two")], replace(KEY, body="another"))
    assert [each.training_id for each in store.all()] == [RECORD.training_id]


def test_of_two_that_begin_at_once_one_writes_and_both_mean_its_training(store):
    def start(number: int) -> str:
        mine = replace(RECORD, training_id=f"one-{number}")
        batch = begin(store, "command", [mine], KEY)
        finish(store, batch)
        return batch.records[0].training_id

    with ThreadPoolExecutor(8) as room:
        assert len(set(room.map(start, range(16)))) == 1
    assert len(store.all()) == 1


def test_a_process_that_lives_on_leaves_what_it_could_not_send_to_the_next_request(store):
    sent = Sent(store, begin(store, "command", [RECORD], KEY), {0: TransportTimeout("no answer")})
    with pytest.raises(TransportTimeout):
        sent.settled()
    taken_up = broken_off(store, "command")
    assert taken_up is not None and taken_up.records == [RECORD]
    again = Sent(store, taken_up, {0: SubmitRejected("never")})
    with pytest.raises(SubmitRejected):
        again.settled()
    assert broken_off(store, "command") is None


@pytest.mark.parametrize("name", ["", "a\nb", "ü", "x" * 201])
def test_a_name_that_no_request_can_have_is_refused(name):
    with pytest.raises(Misused, match="1 to 200 printable ASCII"):
        Key(name, "body")


def test_a_key_whose_training_was_deleted_makes_no_other(store):
    finish(store, begin(store, "command", [RECORD], KEY))
    store.remove(RECORD.training_id)
    known = earlier_request(store, KEY)
    assert known.records == []
    again = Sent(store, known)
    with pytest.raises(RecordError, match="was deleted"):
        again.settled()
