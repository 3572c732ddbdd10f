"""Logs: no line is lost and none comes twice, whatever happens to connection and files."""

import hashlib
import tracemalloc

import pytest
from login_side import BadTransport

from dlctl.contract import State
from dlctl.errors import AuthError, ConnectionLost
from dlctl.logs import reader as logs
from dlctl.logs.reader import LogReader, begin_at_tail, follow, read
from dlctl.transport.local import LocalTransport


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "job dir with 'quotes'"
    (folder / "attempts/1").mkdir(parents=True)
    return folder


def write(job, name, content, attempt=1):
    path = job / f"attempts/{attempt}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(content)


def collected(pieces):
    found = {}
    for piece in pieces:
        key = (piece.attempt, piece.source)
        found[key] = found.get(key, b"") + piece.content
    return found


@pytest.fixture
def fast(monkeypatch):
    naps = []
    monkeypatch.setattr(logs.time, "sleep", naps.append)
    monkeypatch.setattr(logs, "STATE_EVERY_S", -1.0)
    return naps


def test_attempts_servers_and_learners_come_in_order(job, tmp_path):
    assert list(read(LocalTransport(), LogReader(str(tmp_path / "absent")))) == []
    for name in ("slurm.out", "learner-10.log", "learner-2.log", "learner-0.log", "server-10.log",
                 "server-2.log", "server-x.log"):  # fmt: skip
        write(job, name, b"hello\n")
    write(job, "learner-0.log", b"again\nkilled he", attempt=2)
    pieces = list(read(LocalTransport(), LogReader(str(job))))
    assert list(collected(pieces)) == [
        (1, "job"), (1, "server-2"), (1, "server-10"), (1, "learner-0"), (1, "learner-2"),
        (1, "learner-10"), (2, "learner-0"),
    ]  # fmt: skip
    assert collected(pieces)[2, "learner-0"] == b"again\nkilled he\n", (
        "a last line may lack its end"
    )
    some = collected(read(LocalTransport(), LogReader(str(job), ranks=[0], first_attempt=2)))
    assert some == {(2, "learner-0"): b"again\nkilled he\n"}


def test_an_end_that_the_log_tells_is_asked_for_at_once(job, monkeypatch):
    monkeypatch.setattr(logs, "STATE_EVERY_S", 1e9)
    monkeypatch.setattr(logs.time, "sleep", lambda _: None)
    write(job, "slurm.out", b"03:08:45 COMPLETED: All 2 learners ended with exit code 0.\n")
    states = iter([State.TRAINING, State.COMPLETED])
    reader = LogReader(str(job))
    list(follow(LocalTransport(), reader, lambda: next(states), print))
    assert list(states) == [], "asked twice"


def test_a_line_without_an_end_waits_for_it(job):
    reader, transport = LogReader(str(job)), LocalTransport()
    write(job, "learner-0.log", b"one\ntw")
    assert collected(reader.news(transport)) == {(1, "learner-0"): b"one\n"}
    write(job, "learner-0.log", "o é"[:-1].encode() + "é".encode()[:1])
    assert reader.news(transport) == []
    write(job, "learner-0.log", "é".encode()[1:] + b"\n")
    assert collected(reader.news(transport)) == {(1, "learner-0"): "two é\n".encode()}
    assert reader.rest() == []
    for content in (b"\n", b"a\n", b"\n", b"\n\n"):  # empty lines are lines
        write(job, "learner-0.log", content)
        assert collected(reader.news(transport)) == {(1, "learner-0"): content}


@pytest.mark.parametrize("first_attempt", [1, 2])
def test_big_logs_and_long_lines_are_read_to_their_end(job, fast, monkeypatch, first_attempt):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 1000)
    long_line = b"x" * 5500 + b"\n"
    write(job, "learner-0.log", b"short\n" + long_line + b"end\n")
    write(job, "learner-0.log", b"second\n", attempt=2)
    reader, again = (LogReader(str(job), first_attempt=first_attempt) for _ in range(2))
    pieces = read(LocalTransport(), reader)
    expected = {(1, "learner-0"): b"short\n" + long_line + b"end\n", (2, "learner-0"): b"second\n"}
    expected = {k: v for k, v in expected.items() if k[0] >= first_attempt}
    assert collected(pieces) == expected
    followed = follow(LocalTransport(), again, lambda: State.FAILED, print)
    assert collected(followed) == expected, "what came before the end is read"


class EveryNth(BadTransport):
    def __init__(self, nth, when):
        super().__init__(when=when)
        self.nth = nth

    def _breaks(self):
        self.calls += 1
        return self.calls % self.nth == 0


@pytest.mark.parametrize(("nth", "when"), [(3, "before"), (4, "after")])
def test_no_line_is_lost_or_doubled_over_lost_connections(job, fast, nth, when):
    transport, troubles, asked = EveryNth(nth, when), [], []
    lines = {0: [b"a %d\n" % i for i in range(40)], 1: [b"b %d \xc3\xa9\n" % i for i in range(40)]}

    def state():
        asked.append(1)
        for rank in (0, 1):  # each look finds a line and a half more
            text = b"".join(lines[rank])
            write(job, f"learner-{rank}.log", text[(len(asked) - 1) * 9 : len(asked) * 9])
        transport.run(":")
        return State.COMPLETED if len(asked) > 60 else State.TRAINING

    reader = LogReader(str(job))
    found = collected(follow(transport, reader, state, troubles.append))
    assert found == {(1, f"learner-{rank}"): b"".join(lines[rank]) for rank in (0, 1)}
    assert troubles
    assert all(isinstance(trouble, ConnectionLost) for trouble in troubles)


def test_a_long_outage_is_reported_once_and_polled_less_and_less(job, fast):
    write(job, "learner-0.log", b"one\n")
    troubles, states = [], iter([*[ConnectionLost("gone")] * 8, State.COMPLETED, State.COMPLETED])

    def state():
        value = next(states)
        if isinstance(value, Exception):
            raise value
        return value

    found = collected(follow(LocalTransport(), LogReader(str(job)), state, troubles.append))
    assert found == {(1, "learner-0"): b"one\n"}
    assert len(troubles) == 1
    assert fast[:8] == [1.0, 2.0, 5.0, 10.0, 30.0, 30.0, 30.0, 30.0]


def test_what_no_waiting_heals_ends_the_following(job, fast):
    def state():
        raise AuthError("the key was refused")

    with pytest.raises(AuthError):
        list(follow(LocalTransport(), LogReader(str(job)), state, lambda _: None))


STARTS, ENDS = b"10:00:00 TRAINING: 1 learner\n", b"10:00:09 COMPLETED: All went well.\n"
STORES = b"10:00:08 STORING: results\n"


@pytest.mark.parametrize("chunk_bytes", [40, 1 << 20])
def test_the_end_of_an_attempt_comes_after_what_its_learners_said(job, monkeypatch, chunk_bytes):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", chunk_bytes)
    for attempt in (1, 2):
        write(job, "slurm.out", STARTS + STORES + ENDS, attempt)
        write(job, "learner-0.log", b"epoch 1\nepoch 2\n", attempt)
    text = b"".join(p.content for p in read(LocalTransport(), LogReader(str(job))))
    assert text == 2 * (STARTS + b"epoch 1\nepoch 2\n" + STORES + ENDS)


def test_following_prints_the_end_last(job, fast):
    write(job, "slurm.out", STARTS)
    states = iter([State.TRAINING, State.COMPLETED, State.COMPLETED, State.COMPLETED])

    def state():
        now = next(states)
        if now is State.TRAINING:
            write(job, "slurm.out", STORES + ENDS)
            write(job, "learner-0.log", b"epoch 1\n")
        return now

    text = b"".join(p.content for p in follow(LocalTransport(), LogReader(str(job)), state, print))
    assert text == STARTS + b"epoch 1\n" + STORES + ENDS


def test_a_line_of_any_length_takes_little_memory_and_loses_nothing(job):
    line = ("é" * (1 << 23)).encode()
    write(job, "learner-0.log", b"x" + line + b"\nend\n")
    tracemalloc.start()
    seen = hashlib.sha256()
    for piece in read(LocalTransport(), LogReader(str(job))):
        piece.content.decode()  # no character is cut in two
        seen.update(piece.content)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen.digest() == hashlib.sha256(b"x" + line + b"\nend\n").digest()
    assert peak_bytes < 12 << 20


def test_the_tail_of_each_log_of_the_newest_attempt(job):
    for attempt in (1, 2):
        write(job, "slurm.out", STARTS + STORES + b"10:00:08   2 files\n" + ENDS, attempt)
        write(job, "learner-0.log", b"one\ntwo\nthree\n", attempt)
        write(job, "learner-1.log", b"short\n", attempt)
    reader = LogReader(str(job), first_attempt=2)
    begin_at_tail(reader, LocalTransport(), 2)
    assert [(p.attempt, p.source, p.content) for p in read(LocalTransport(), reader)] == [
        (2, "learner-0", b"two\nthree\n"),
        (2, "learner-1", b"short\n"),
        (2, "job", b"10:00:08   2 files\n" + ENDS),
    ]
    write(job, "learner-0.log", b"four\n", attempt=2)
    assert collected(reader.news(LocalTransport())) == {(2, "learner-0"): b"four\n"}


class Growing(LocalTransport):
    """Each look finds that the program has printed more."""

    def __init__(self, job):
        super().__init__()
        self.job, self.looks = job, 0

    def run(self, *arguments, **options):
        end = super().run(*arguments, **options)
        self.looks += 1
        assert self.looks < 20, "the reader runs after the log"
        for name in ("learner-0.log", "learner-1.log"):
            write(self.job, name, b"more\n")
        write(self.job, "learner-0.times", b"%d.000 5\n" % self.looks)
        return end


@pytest.mark.parametrize("tail", [None, 2])
def test_what_exists_is_read_to_its_end_while_the_logs_grow(job, monkeypatch, tail):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 100)
    write(job, "learner-0.log", b"one\n" * 100)
    write(job, "learner-1.log", b"two\n")
    reader, transport = LogReader(str(job)), Growing(job)
    if tail is not None:
        begin_at_tail(reader, transport, tail)
    found = collected(read(transport, reader))
    assert found[1, "learner-0"].count(b"one\n") == (100 if tail is None else tail)
    assert found[1, "learner-1"].startswith(b"two\n")
