"""What one client's stream may do to the others, and to the server's memory."""

from __future__ import annotations

import base64
import json
import threading
import zlib

import pytest
from login_side import make_record

from dlctl.contract import State
from dlctl.logs import sieve
from dlctl.logs.reader import LogPiece
from dlctl.serve import follow

LOG = "attempts/1/learner-0.log"


@pytest.fixture
def path(desk, tmp_path) -> str:
    job = tmp_path / "jobs/t-1"
    log = job / LOG
    log.parent.mkdir(parents=True)
    log.write_text(40 * "a" + "b\nlast\n")
    desk.mine.store.add(make_record(site="local", job_dir=str(job), state=State.COMPLETED))
    return "/api/v1/trainings/t-1/logs"


def position(**sizes: int) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(sizes).encode())).decode()


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["text/event-stream", "text/plain"])
def test_a_pattern_without_end_stops_nobody(server, path, monkeypatch, accept):
    monkeypatch.setattr(sieve, "_PATIENCE_S", 2.0)
    told: list[bytes] = []

    def look_for_ever() -> None:
        told.append(server.ask(f"{path}?grep=(a%2B)%2B%24", accept=accept).body)

    other = threading.Thread(target=look_for_ever)
    other.start()
    while other.is_alive():
        assert server.ask("/api/v1/health").status == 200
    assert b"too long" in told[0], told
    assert server.ask(f"{path}?grep=la.t").body == b"learner-0 | last\n"


@pytest.mark.parametrize("sizes", [
    {LOG: -4}, {LOG: 1 << 70}, {"../../x": 3}, {"a\nb": 3}, {"attempts/1/\ud800": 2},
])  # fmt: skip
def test_a_position_that_no_log_has_is_refused(server, path, sizes):
    refused = server.ask(path, accept="text/event-stream", last_event_id=position(**sizes))
    assert refused.status == 400, refused


def test_what_is_wrong_with_one_stream_ends_no_other(server, path, monkeypatch):
    take = follow.LogSource.take
    wrong: list[object] = []

    def fail_first(source, *how):
        wrong[:] = wrong or [source]
        if source is wrong[0]:
            raise ValueError("damaged")
        return take(source, *how)

    monkeypatch.setattr(follow.LogSource, "take", fail_first)
    first = server.events(path)
    assert next(first)[0] == "problem"
    (event,) = server.events(path, most=1)
    assert event[0] == "message"


def test_numbers_of_followers_are_used_again(server, path, desk, monkeypatch):
    numbers: list[int] = []
    made = follow._Follower

    def noted(*how):
        numbers.append(how[-1])
        return made(*how)

    monkeypatch.setattr(follow, "_Follower", noted)
    for _ in range(4):
        assert len([*server.events(path, most=1)]) == 1
    assert max(numbers) < 3, "its look would grow with each"


def test_little_waits_for_a_reader_that_is_slow(desk):
    class Told:
        def positions(self) -> dict[str, int]:
            return {}

    class Loop:
        def call_soon_threadsafe(self, put, item) -> None:
            put(item)

    waits = follow._Follower(make_record(), Told(), Loop(), 0)  # type: ignore[arg-type]
    given = 0
    while waits.has_room:
        waits.give([LogPiece(1, "learner-0", (1 << 20) * b"x")])
        given += 1
    assert given == 1
