"""The local record: what is written comes back, and nothing old overwrites what is newer."""

import sqlite3
import stat
import threading
from dataclasses import replace

import pytest
from login_side import make_record

from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.record import RecordStore, state_directory


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "trainings.db")


def test_a_record_comes_back_whole(store):
    record = make_record(reason="weird: ' \" \n ; DROP TABLE trainings", state=State.HALTED,
                         attempt=3, job_id="77", seen_at=1.5, stale_since=2.5)  # fmt: skip
    store.add(record)
    assert store.all() == [record]


def test_an_id_is_there_once(store):
    store.add(make_record())
    with pytest.raises(RecordError, match="can't be used"):
        store.add(make_record())


def test_a_late_poll_of_an_older_attempt_overwrites_nothing(store):
    old = make_record(attempt=1, state=State.TRAINING)
    store.add(old)
    new = replace(old, attempt=2, state=State.PENDING, job_id="8")
    store.update(new)
    store.update(replace(old, state=State.FAILED))
    assert store.all() == [new]


def test_an_update_of_a_deleted_training_does_not_bring_it_back(store):
    store.add(make_record())
    store.remove("t-1")
    store.update(make_record(state=State.COMPLETED))
    assert store.all() == []


def test_a_prefix_is_enough_where_it_is_unique(store):
    for training_id in ("digits-aaaa", "digits-aabb", "digits", "words-cccc"):
        store.add(make_record(training_id=training_id))
    assert store.find("w").training_id == "words-cccc"
    assert store.find("digits").training_id == "digits"
    with pytest.raises(RecordError, match="fits 2 trainings") as ambiguous:
        store.find("digits-a")
    assert "digits-aabb" in ambiguous.value.hint
    with pytest.raises(RecordError, match="no training 'x' is known"):
        store.find("x")


def test_no_id_is_the_newest_of_the_folder(store, tmp_path):
    here = str(tmp_path.resolve())
    for number, folder in enumerate([here, here, "/elsewhere"]):
        store.add(
            make_record(training_id=f"t-{number}", folder=folder, created_at=f"2026-0{number + 1}")
        )  # noqa: E501
    assert store.find(None, tmp_path).training_id == "t-1"
    with pytest.raises(RecordError, match="no training was submitted from"):
        store.find(None, tmp_path / "empty")


def test_the_folder_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert stat.S_IMODE(state_directory().stat().st_mode) == 0o700
    assert RecordStore().path == tmp_path / "state/dlctl/trainings.db"


def test_a_relative_state_home_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory() == tmp_path / ".local/state/dlctl"


def test_a_damaged_file_is_one_sentence(store):
    store.path.write_bytes(b"this is no database, but long enough to look at" * 100)
    with pytest.raises(RecordError, match="can't be used: file is not a database"):
        store.all()


def test_several_at_once_lose_nothing(store):
    def add(number):
        RecordStore(store.path).add(make_record(training_id=f"t-{number}"))

    threads = [threading.Thread(target=add, args=[n]) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.training_id for r in store.all()} == {f"t-{n}" for n in range(12)}


def test_the_file_says_which_schema_it_has(store):
    store.all()
    connection = sqlite3.connect(store.path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()


def test_a_state_folder_that_cannot_be_made_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(RecordError, match="can't be created"):
        RecordStore()
