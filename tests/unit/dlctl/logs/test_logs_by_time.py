"""Logs are merged by the times noted beside them; what has no time is the newest."""

import random
import time
import tracemalloc

import pytest
from login_side import BadTransport

from dlctl.contract import State, note_line, times_file
from dlctl.errors import ConnectionLost, Misused
from dlctl.logs import reader as logs
from dlctl.logs.reader import LogReader, begin_at_tail, begin_since, follow, read
from dlctl.service.logs import LinesWanted
from dlctl.transport.local import LocalTransport


@pytest.fixture
def job(tmp_path):
    return tmp_path / "job"


def write(job, name, *blocks, attempt=1):
    """Append blocks to a log: (time, content), with the time None if nobody noted it."""
    log = job / f"attempts/{attempt}" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    for time_s, content in blocks:
        with log.open("ab") as file:
            file.write(content)
            size_bytes = file.tell()
        if time_s is not None:
            with log.with_name(times_file(name)).open("a") as file:
                file.write(note_line(time_s, size_bytes))


def shown(job, **how):
    return told(read(LocalTransport(), LogReader(str(job), **how)))


def told(pieces):
    return [
        f"{piece.source}: {line}"
        for piece in pieces
        for line in piece.content.decode().splitlines()
    ]


STARTS, STORES = b"10:00:00 TRAINING: x\n", b"10:00:09 STORING: results\n"
ENDS = b"10:00:10 COMPLETED: fine\n"


def two_learners(job, attempt=1):
    write(job, "slurm.out", (1, STARTS), (9, STORES), (10, ENDS), attempt=attempt)
    write(job, "learner-0.log", (2, b"a\n"), (4, b"b\nc\n"), (8, b"d\n"), attempt=attempt)
    write(job, "learner-1.log", (3, b"a\n"), (7, b"b\n"), attempt=attempt)
    write(job, "server-0.log", (1.5, b"serves\n"), (8.5, b"ends\n"), attempt=attempt)


MERGED = [
    "job: 10:00:00 TRAINING: x", "server-0: serves", "learner-0: a", "learner-1: a",
    "learner-0: b", "learner-0: c", "learner-1: b", "learner-0: d", "server-0: ends",
    "job: 10:00:09 STORING: results", "job: 10:00:10 COMPLETED: fine",
]  # fmt: skip


@pytest.mark.parametrize("chunk_bytes", [10, 30, 1 << 20])
def test_the_lines_of_an_attempt_come_by_time(job, monkeypatch, chunk_bytes):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", chunk_bytes)
    two_learners(job)
    two_learners(job, attempt=2)
    assert shown(job) == 2 * MERGED
    assert shown(job, ranks=[1]) == ["learner-1: a", "learner-1: b"] * 2
    reader = LogReader(str(job), by_time=False)  # as a fetch
    sources = [piece.source for piece in read(LocalTransport(), reader)]
    assert sorted(set(sources)) == ["job", "learner-0", "learner-1", "server-0"]


def test_what_has_no_time_is_the_newest(job):
    write(job, "slurm.out", (1, STARTS), (None, b"10:00:05 halt: asked\n" + ENDS))
    write(job, "server-0.log", (None, b"serves\n"))
    write(job, "learner-0.log", (2, b"a\n"), (None, b"b\n"))
    write(job, "learner-1.log", (3, b"a\n"), (None, b"b\n"))
    assert shown(job) == [
        "job: 10:00:00 TRAINING: x", "learner-0: a", "learner-1: a", "job: 10:00:05 halt: asked",
        "server-0: serves", "learner-0: b", "learner-1: b", "job: 10:00:10 COMPLETED: fine",
    ]  # fmt: skip


def test_the_verdict_comes_last_whatever_the_clocks_say_and_whether_lines_end(job):
    write(job, "slurm.out", (1, STARTS), (2, ENDS))
    write(job, "learner-0.log", (50, b"a\n"), (51, b"no end"))
    write(job, "learner-0.log", (60, b"again\n"), attempt=2)
    assert shown(job) == [
        "job: 10:00:00 TRAINING: x", "learner-0: a", "learner-0: no end",
        "job: 10:00:10 COMPLETED: fine", "learner-0: again",
    ]  # fmt: skip


def test_a_long_end_of_the_job_holds_nothing_up(job, monkeypatch):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 60)
    end = ENDS + b"  why\n" * 60
    write(job, "slurm.out", (1, STARTS), (2, ENDS), *((3 + n, b"  why\n") for n in range(60)))
    for rank in (0, 1):
        write(job, f"learner-{rank}.log", *((100 + n + rank / 2, b"a\n") for n in range(60)))
    ends = [f"job: {line}" for line in end.decode().splitlines()]
    assert shown(job) == [MERGED[0], *["learner-0: a", "learner-1: a"] * 60, *ends]


def test_a_clock_that_is_set_back_and_damaged_notes_lose_nothing(job):
    write(job, "learner-0.log", (5, b"a\n"), (3, b"b\n"), (7, b"c\n"))
    write(job, "learner-1.log", (4, b"a\n"), (6, b"b\n"))
    expected = ["learner-1: a", "learner-0: a", "learner-0: b", "learner-1: b", "learner-0: c"]
    assert shown(job) == expected
    notes = job / "attempts/1/learner-1.times"
    notes.write_bytes(b"4.000 2\nx\n\xff 3\n4.000 24.500 3\n\n9.000 1\n6.000 4\n12.0")
    assert shown(job) == expected
    notes.write_bytes(b"\0" * 5000)
    assert shown(job)[-2:] == ["learner-1: a", "learner-1: b"]


def random_logs(job, count, seed, notes_per_line=1.0):
    """Write logs of different speed; return the lines in the right order."""
    chance, lines = random.Random(seed), []
    for rank in range(count):
        time_s, blocks, part, waiting = 0.0, [], b"", []
        for number in range(chance.randint(0, 50)):
            time_s += chance.random() * (1 + rank)
            text = f"{number} é" + "x" * chance.randint(0, 30)
            waiting.append(f"learner-{rank}: {text}")
            line = part + f"{text}\n".encode()
            if chance.random() < notes_per_line:
                blocks.append((round(time_s, 3) + rank / 1e4, line))
                lines += [(blocks[-1][0], rank, number, each) for each in waiting]
                part, waiting = b"", []
            else:
                part = line
        write(job, f"learner-{rank}.log", *blocks)
        write(job, f"learner-{rank}.log", (None, part))
        lines += [(float("inf"), rank, 0, each) for each in waiting]
    return [line for *_, line in sorted(lines, key=lambda each: each[:3])]


@pytest.mark.first("150", "4000")
@pytest.mark.parametrize("chunk_bytes", [40, 150, 4000])
def test_parts_of_any_size_are_merged_alike(job, monkeypatch, chunk_bytes):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", chunk_bytes)
    for seed in range(2):
        expected = random_logs(job / str(seed), 4, seed, notes_per_line=0.7)
        assert shown(job / str(seed)) == expected


def test_logs_of_different_speed_need_no_more_looks_than_the_biggest(job, monkeypatch):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 1000)
    (job / "attempts/1").mkdir(parents=True)
    for rank in range(40):
        lines = b"".join(b"%06d\n" % n for n in range(1000 + 10 * rank))
        log = job / f"attempts/1/learner-{rank}.log"
        log.write_bytes(lines)
        sizes = range(70, len(lines) + 1, 70)
        notes = (note_line(size / len(lines) * 100 + rank / 50, size) for size in sizes)
        log.with_suffix(".times").write_text("".join(notes))
    reader, transport = LogReader(str(job)), BadTransport()
    assert sum(len(piece.content) for piece in read(transport, reader)) > 280_000
    assert transport.calls < 2 * 10 + 5  # the biggest log has 10 parts


@pytest.mark.slow
def test_many_logs_take_little_memory(job, monkeypatch):
    monkeypatch.setattr(logs, "_LOOK_BYTES", 1 << 20)
    line = b"x" * 99 + b"\n"
    for rank in range(16):
        write(job, f"learner-{rank}.log", *((n * (rank + 1), line * 1000) for n in range(20)))
    tracemalloc.start()
    size_bytes = sum(len(p.content) for p in read(LocalTransport(), LogReader(str(job))))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size_bytes == 16 * 20 * 100_000
    assert peak_bytes < 14 << 20


class EveryThird(BadTransport):
    def _breaks(self):
        self.calls += 1
        return self.calls % 3 == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_followed_logs_are_merged_look_by_look(job, monkeypatch, when):
    monkeypatch.setattr(logs.time, "sleep", lambda _: None)
    monkeypatch.setattr(logs, "STATE_EVERY_S", -1.0)
    asked, troubles = [], []

    def state():
        asked.append(1)
        at = 100 * len(asked)
        if len(asked) < 20:
            write(job, "learner-0.log", (at, b"a %d\n" % at), (at + 2, b"b %d\n" % at))
            write(job, "learner-1.log", (at + 1, b"a %d\n" % at), (None, b"late %d\n" % at))
        if len(asked) == 20:
            write(job, "slurm.out", (at, ENDS))
        return State.COMPLETED if len(asked) > 40 else State.TRAINING

    lines = told(follow(EveryThird(when=when), LogReader(str(job)), state, troubles.append))
    assert all(isinstance(trouble, ConnectionLost) for trouble in troubles) and troubles
    expected = []
    for at in range(100, 2000, 100):
        for line in (f"learner-0: a {at}", f"learner-1: a {at}", f"learner-0: b {at}"):
            assert line in lines
            expected.append(line)
        expected.append(f"learner-1: late {at}")
    assert sorted(lines[:-1]) == sorted(expected)
    assert lines[-1] == "job: 10:00:10 COMPLETED: fine"
    assert lines[:4] == expected[:4]


def test_the_tails_are_merged_and_need_only_the_last_notes(job):
    write(job, "slurm.out", (1, STARTS), (9, STORES), (10, ENDS))
    for rank in (0, 1):
        steps = range(2, 1000)
        blocks = ((n + rank / 2, b"step %d\n" % n) for n in steps)
        write(job, f"learner-{rank}.log", *blocks)
    reader = LogReader(str(job))
    begin_at_tail(reader, LocalTransport(), 2)
    assert reader._logs["attempts/1/learner-0.log"].times_offset > 10_000
    assert told(read(LocalTransport(), reader)) == [
        "learner-0: step 998", "learner-1: step 998", "learner-0: step 999",
        "learner-1: step 999", "job: 10:00:09 STORING: results", "job: 10:00:10 COMPLETED: fine",
    ]  # fmt: skip


def test_a_log_with_a_hostile_name_is_not_shown(job):
    write(job, "learner-0.log", (1, b"a\n"))
    for name in ("learner-1\n7 x.log", "learner-x.log", "learner-'.times"):
        (job / "attempts/1" / name).write_bytes(b"b\n" * 100)
    reader = LogReader(str(job))
    begin_at_tail(reader, LocalTransport(), 2)
    assert told(read(LocalTransport(), reader)) == ["learner-0: a"] == shown(job)


# Only some lines: of ranks, of an attempt, since a time, or those that a pattern fits ------------


def lines_of(reader, pattern=None, transport=None):
    """Return the lines that are found, as every face picks them."""
    wanted = LinesWanted(grep=pattern)
    return [
        f"{piece.attempt} {piece.source}: {line}"
        for piece in read(transport or LocalTransport(), reader)
        for line in wanted.of(piece)
    ]


def two_attempts(job):
    for attempt in (1, 2):
        at = 1000.0 * attempt
        write(job, "slurm.out", (at, b"10:00:00 TRAINING: x\n"), attempt=attempt)
        for rank in range(3):
            write(job, f"learner-{rank}.log", (at + rank, b"one %d\n" % rank),
                  (at + 10 + rank, b"two %d\n" % rank), attempt=attempt)  # fmt: skip


def test_several_ranks_are_merged_by_time(job):
    two_attempts(job)
    assert lines_of(LogReader(str(job), ranks=[0, 2], only_attempt=2, first_attempt=2)) == [
        "2 learner-0: one 0", "2 learner-2: one 2", "2 learner-0: two 0", "2 learner-2: two 2",
    ]  # fmt: skip
    write(job, "learner-0.log", (10_000.0, b"eleven\n"), attempt=11)
    assert lines_of(LogReader(str(job), [1], only_attempt=1)) == [
        "1 learner-1: one 1", "1 learner-1: two 1",
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [[], [1]])
def test_since_a_time(job, ranks):
    two_attempts(job)
    reader = LogReader(str(job), ranks)
    begin_since(reader, LocalTransport(), at=2011.0)
    everything = ["2 learner-1: two 1", "2 learner-2: two 2"]
    assert lines_of(reader) == (everything[:1] if ranks else everything)


def test_since_some_minutes_ago_by_the_clock_of_the_site(job):
    now = time.time()
    write(job, "learner-0.log", (now - 700, b"old\n"), (now - 500, b"new\n"), (None, b"newest\n"))
    write(job, "learner-1.log", (None, b"without notes\n"))
    reader = LogReader(str(job))
    begin_since(reader, LocalTransport(), ago_s=600)
    assert lines_of(reader) == [
        "1 learner-0: new", "1 learner-0: newest", "1 learner-1: without notes",
    ]  # fmt: skip


def test_a_line_that_was_begun_before_counts_by_its_end(job):
    write(job, "learner-0.log", (10.0, b"old\nbegu"), (20.0, b"n before\n"))
    reader = LogReader(str(job))
    begin_since(reader, LocalTransport(), at=15.0)
    assert lines_of(reader) == ["1 learner-0: begun before"]


def test_since_and_tail_together_begin_at_the_later(job):
    write(job, "learner-0.log", (10.0, b"old\n"), (20.0, b"a\nb\nc\n"))
    write(job, "learner-1.log", (10.0, b"x\ny\n"), (20.0, b"z\n"))
    reader = LogReader(str(job))
    begin_since(reader, LocalTransport(), at=15.0)
    begin_at_tail(reader, LocalTransport(), 2)
    assert lines_of(reader) == ["1 learner-0: b", "1 learner-0: c", "1 learner-1: z"]


class Counting(LocalTransport):
    def __init__(self):
        super().__init__()
        self.moved_bytes = 0

    def run(self, *arguments, **options):
        end = super().run(*arguments, **options)
        self.moved_bytes += len(end.stdout)
        return end


@pytest.mark.parametrize("chunk_bytes", [700, 1 << 20])
def test_a_pattern_picks_lines_as_they_are_shown(job, monkeypatch, chunk_bytes):
    monkeypatch.setattr(logs, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(logs, "_LEAST_BYTES", 64)
    lines = [b"line %d\x1b[31m loss\x1b[0m %d" % (n, n % 4) for n in range(200)]
    write(job, "learner-0.log", (1.0, b"\n".join(lines) + b"\n"))
    found = lines_of(LogReader(str(job)), r"^line 1\d* loss 3$")
    wanted = [n for n in range(200) if str(n).startswith("1") and n % 4 == 3]
    assert [int(line.split("line ")[1].split("\x1b")[0]) for line in found] == wanted


def test_a_log_crosses_the_link_once_and_compressed(job):
    text = b"".join(
        b"12:00:%02d epoch 3 step %d loss 0.%d\n" % (i % 60, i, i * 7919) for i in range(60_000)
    )
    write(job, "learner-0.log", (1.0, text))
    transport = Counting()
    assert len(lines_of(LogReader(str(job)), None, transport)) == 60_000
    assert transport.moved_bytes < 0.35 * len(text)


@pytest.mark.parametrize("wrong", [
    {"rank": "a"}, {"rank": "3-1"}, {"since": "yesterday"}, {"since": "25:00"}, {"grep": "("},
])  # fmt: skip
def test_what_is_no_choice_is_refused_before_a_site_is_asked(wrong):
    (name,) = wrong
    with pytest.raises(Misused) as raised:
        LinesWanted(**wrong)
    assert raised.value.option == f"--{name}"
