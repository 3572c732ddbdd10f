"""One reader keeps trainings of many sites new, and a site that is silent delays no other."""

import threading
from contextlib import closing
from dataclasses import replace

import pytest
from login_side import make_record

from dlctl.contract import State
from dlctl.errors import AuthError, ConnectError, RecordError
from dlctl.live import sites
from dlctl.live.sites import Live, live_of
from dlctl.record import RecordStore


class Session:
    """An open site that counts who has left it."""

    closed = 0

    def stay(self):
        return self

    def close(self):
        Session.closed += 1


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The trainings `a-1` at site a and `b-1` at site b, whose states do not change."""
    monkeypatch.setattr(sites, "refresh", lambda session, records, store, pace: records)
    store = RecordStore(tmp_path / "record.db")
    for name in ("a", "b"):
        store.add(make_record(training_id=f"{name}-1", site=name, state=State.TRAINING))
    return store


def test_a_site_that_is_silent_delays_no_other(store, wait_until):
    goes_on = threading.Event()

    def open_site(name):
        if name == "a":
            goes_on.wait(60)
            raise ConnectError("no answer in time")
        return Session()

    with closing(live_of(store, open_site, store.all(), lambda _, records: set())) as live:
        live.start()
        wait_until(lambda: live.versions.after(0) == ["b-1"], what="news of b")
        assert live.trouble(live.records[0], 0.0, "it is", 1.0) == "asking a"
        goes_on.set()
        wait_until(lambda: "a" in live.errors, what="the error of a")
        assert live.trouble(live.records[0], 1.0, "it is", 61.0) == (
            "no answer in time; it is as of 60 s ago"
        )
        assert [r.stale_since is not None for r in store.all()] == [True, False]
        live.check()  # it may pass


def test_what_waiting_does_not_mend_is_tried_once(store, wait_until):
    tried = []

    def open_site(name):
        tried.append(name)
        raise AuthError("no key was accepted")

    with closing(live_of(store, open_site, store.all()[:1], lambda _, records: set())) as live:
        live.start()
        wait_until(lambda: "a" in live.errors, what="the error")
        with pytest.raises(AuthError):
            live.check()
        assert live._sites["a"].pause_s is None  # so that no key is tried again
        assert tried == ["a"]


def test_trainings_that_come_and_go_are_news_without_a_connection_to_ended_ones(store):
    opened = []
    for record in store.all():
        store.update(replace(record, state=State.COMPLETED))
    with closing(Live(store, opened.append, store.all)) as live:
        assert live.look() == {"a-1", "b-1"} and live.ended
        assert live.look() == set()
        store.add(make_record(training_id="a-2", site="a", state=State.FAILED))
        assert live.look() == {"a-2"}
        store.remove("b-1")
        assert live.look() == {"b-1"}
    assert opened == []


def test_connections_are_closed_with_their_threads(store, wait_until):
    Session.closed = 0
    live = live_of(store, lambda _: Session(), store.all(), lambda _, records: set())
    live.start()
    assert live.call("a", lambda session: session.stay()).result(60)
    wait_until(lambda: len(live.versions.after(0)) == 2, what="both sites")
    live.close()
    assert Session.closed == 2
    assert live.call("a", lambda session: 1).cancelled()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_look_keeps_what_cannot_be_written_down(store, monkeypatch, is_damaged):
    told = []

    def full(*_, **__):
        raise RecordError("the disk is full")

    def completed(session, records, store, pace):
        known = [replace(record, state=State.COMPLETED, seen_at=2.0) for record in records]
        store.update(*known)
        return known

    monkeypatch.setattr(sites, "refresh", completed)
    store.tell = told.append
    with closing(Live(store, lambda _: Session(), store.all)) as live:
        if is_damaged:
            store.path.write_bytes(b"damaged!" * 1000)
        else:
            monkeypatch.setattr(store, "change", full)
        assert live.look() == {"a-1", "b-1"} and live.ended
        assert live.look() == set() and live.ended
    lost = "file is not a database; what is known is not written down"
    assert not is_damaged or lost in told[0]


@pytest.mark.parametrize("hangs_up", [False, True])
def test_while_nobody_wants_news_a_server_hangs_up(store, hangs_up):
    wanted, before = [True], Session.closed
    live = Live(store, lambda _: Session(), store.all, is_wanted=lambda _: wanted[0],
                hangs_up=hangs_up)  # fmt: skip
    with closing(live):
        live.look()
        wanted[0] = False
        live.look()
        assert Session.closed - before == (2 if hangs_up else 0)
