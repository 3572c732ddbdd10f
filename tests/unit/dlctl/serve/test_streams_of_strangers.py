"""No client's stream harms the others, or the server's memory."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import websockets.sync.client
from login_side import make_record
from zygote import wait_for

from dlctl.contract import State
from dlctl.errors import TransferError
from dlctl.logs import sieve
from dlctl.logs.reader import LogPiece
from dlctl.serve import follow
from dlctl.serve.problems import NotFound

LIST = "/api/v1/trainings"
LOG = "attempts/1/learner-0.log"


@pytest.fixture
def path(desk, tmp_path):
    job = tmp_path / "jobs/t-1"
    log = job / LOG
    log.parent.mkdir(parents=True)
    log.write_text(40 * "a" + "b\nlast\n")
    desk.mine.store.add(make_record(site="local", job_dir=str(job), state=State.COMPLETED))
    return f"{LIST}/t-1/logs"


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


def test_an_older_client_that_leaves_is_followed_no_more(server, desk):
    desk.mine.store.add(make_record(site="local", training_id="t-1", state=State.TRAINING,
                                    job_dir="/nowhere"))  # fmt: skip
    headers = {"authorization": f"Bearer {server.token}"}
    address = f"ws://127.0.0.1:{server.port}/v1/models/t-1/logs"

    def followers() -> list[object]:
        return [each for mine in desk.followers._sites.values() for each in mine]

    with websockets.sync.client.connect(address, additional_headers=headers):
        wait_for(followers)
    wait_for(lambda: not followers())


def test_a_stream_whose_training_was_deleted_says_so(server, desk, monkeypatch):
    desk.mine.store.add(make_record(site="local", training_id="t-1", state=State.TRAINING))
    finds = iter([desk.find])

    async def find(training_id: str):
        for first in finds:
            return await first(training_id)
        raise NotFound("no training 't-1' is known here")

    async def nothing(*_):
        for never in ():
            yield never

    monkeypatch.setattr(desk, "find", find)
    monkeypatch.setattr(desk.followers, "follow", nothing)
    told = server.ask(f"{LIST}/t-1/metrics", accept="text/event-stream")
    assert told.body.startswith(b"event: problem") and b"no training" in told.body


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


def test_a_training_that_can_not_be_read_ends_no_other_stream(desk, monkeypatch):
    good, bad = (
        make_record(site="local", training_id=name, state=State.TRAINING, job_dir=f"/no/{name}")
        for name in ("good", "bad")
    )  # fmt: skip

    def take(self, _session, _found):
        if self.look().folder.startswith(bad.job_dir):
            raise TransferError("it can't be read")
        return ["news"]

    monkeypatch.setattr(follow.MetricsSource, "take", take)
    monkeypatch.setattr(follow, "refresh", lambda _session, known, *_: known)

    async def first_of(record) -> object:
        async for batch in desk.followers.follow(record, follow.MetricsSource(record)):
            return batch.pieces
        return None

    async def both() -> list[object]:
        asked = [first_of(record) for record in (bad, good)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:  # this one may have a browser's loop
        refused, pieces = thread.submit(lambda: asyncio.run(both())).result()
    assert isinstance(refused, TransferError) and pieces == ["news"]


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
