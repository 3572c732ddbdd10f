"""Only some lines of logs: of ranks, of an attempt, since a time, or those that a pattern fits."""

import time

import pytest
from test_logs_by_time import write

from dlctl.errors import Misused
from dlctl.logs import reader as logs
from dlctl.logs.reader import LogReader, begin_at_tail, begin_since, read
from dlctl.service.logs import LinesWanted
from dlctl.transport.local import LocalTransport


@pytest.fixture
def job(tmp_path):
    return tmp_path / "job"


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


def test_an_attempt_alone(job):
    two_attempts(job)
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
