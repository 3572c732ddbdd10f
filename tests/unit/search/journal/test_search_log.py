"""A broker's log: whole records, torn tails, group commits, a full disk."""

import asyncio
import errno
import os
import threading

import pytest
from event_loops import in_loop, run_loop
from hypothesis import given
from hypothesis import strategies as st

from search.errors import SearchError
from search.journal import log as log_module
from search.journal.log import Log, Record, encode, read_records

RECORDS = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=8)


@given(records=RECORDS, cut=st.integers(0, 60), noise=st.binary(max_size=30))
def test_what_was_written_whole_is_read_and_a_torn_tail_is_cut(
    tmp_path_factory, records, cut, noise
):
    path = tmp_path_factory.mktemp("log") / "1.log"
    whole = [encode(kind, payload) for kind, payload in records]
    data = b"".join(whole)
    kept = data[: max(0, len(data) - cut)]
    path.write_bytes(kept + (noise if cut else b""))
    found, size = read_records(path)
    ends = [sum(map(len, whole[: n + 1])) for n in range(len(whole))]
    count = sum(end <= len(kept) for end in ends)
    assert found[:count] == [Record(*each) for each in records[:count]]
    if not noise or not cut:
        assert len(found) == count and size == ([0, *ends][count])


@given(records=RECORDS.filter(bool), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_read_as_a_record(tmp_path_factory, records, at, bit):
    path = tmp_path_factory.mktemp("log") / "1.log"
    data = bytearray(b"".join(encode(*each) for each in records))
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    found, _ = read_records(path)
    assert found == [Record(*each) for each in records[: len(found)]]
    assert len(found) < len(records)


@in_loop
async def test_flushed_means_synced(tmp_path, monkeypatch):
    synced: list[int] = []
    real = os.fdatasync
    path = tmp_path / "1.log"

    def fdatasync(file: int) -> None:
        real(file)
        synced.append(path.stat().st_size)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    log = Log(path)
    for number in range(100):
        log.append(1, str(number).encode())
    await log.flushed()
    assert synced[-1] == path.stat().st_size
    assert len(synced) < 100  # together, not one by one
    log.close()
    assert [r.payload for r in read_records(path)[0]] == [str(n).encode() for n in range(100)]


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
@in_loop
async def test_while_the_disk_is_full_nothing_is_acknowledged_and_nothing_is_lost(
    tmp_path, monkeypatch, call
):
    full = True
    real = getattr(os, call)

    def refuse(*arguments: object) -> object:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, call, refuse)
    log = Log(tmp_path / "1.log")
    log.append(1, b"one")
    flushed = asyncio.ensure_future(log.flushed())
    while not flushed.done():
        await asyncio.sleep(0.02)
        log.look()
    for refused in (flushed, log.flushed()):
        with pytest.raises(SearchError, match="the disk is full: .*1.log can't be written"):
            await refused
    assert log.backlog_bytes > 0
    log.append(2, b"two")
    full = False
    while log.full:
        await asyncio.sleep(0.02)
    await log.flushed()
    assert not log.full and log.backlog_bytes == 0
    log.close()
    assert read_records(tmp_path / "1.log")[0] == [Record(1, b"one"), Record(2, b"two")]


def test_while_the_disk_hangs_callers_are_told_and_nothing_is_lost(tmp_path, monkeypatch):
    answers = threading.Event()
    real = os.fdatasync

    def hang(file: int) -> None:
        answers.wait()
        real(file)

    monkeypatch.setattr(os, "fdatasync", hang)
    monkeypatch.setattr(log_module, "_PATIENCE_S", 0.2)

    async def run() -> None:
        log = Log(tmp_path / "1.log")
        log.append(1, b"one")
        flushed = asyncio.ensure_future(log.flushed())
        while not flushed.done():
            await asyncio.sleep(0.02)
            log.look()
        with pytest.raises(SearchError, match="has not answered for 0 s: it hangs"):
            await flushed
        log.append(2, b"two")
        answers.set()
        await log.flushed()
        log.close()

    try:
        run_loop(run())
    finally:
        answers.set()
    assert read_records(tmp_path / "1.log")[0] == [Record(1, b"one"), Record(2, b"two")]


@in_loop
async def test_a_disk_that_fails_acknowledges_nothing_ever_again(tmp_path, monkeypatch):
    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = Log(tmp_path / "1.log")
    monkeypatch.setattr(os, "fdatasync", fail)
    log.append(1, b"one")
    for _ in range(2):
        with pytest.raises(SearchError, match="log can't be written: .*Input/output error"):
            await log.flushed()
    log.close()


@in_loop
async def test_an_incarnation_never_writes_into_a_log_that_exists(tmp_path):
    (tmp_path / "1.log").write_bytes(b"")
    with pytest.raises(FileExistsError):
        Log(tmp_path / "1.log")


@in_loop
async def test_a_further_segment_begins_with_a_snapshot_and_the_old_one_is_removed(tmp_path):
    log = Log(tmp_path / "1.0.log")
    for number in range(20):
        log.append(1, bytes([number]))
    log.begin_segment(tmp_path / "1.1.log", [(7, b"all"), (8, b"")])
    log.append(2, b"later")
    await log.flushed()
    assert log.segment_bytes == (tmp_path / "1.1.log").stat().st_size
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["1.1.log"]
    records = read_records(tmp_path / "1.1.log")[0]
    assert records == [Record(7, b"all"), Record(8, b""), Record(2, b"later")]


@in_loop
async def test_without_room_for_a_snapshot_the_log_goes_on_in_the_old_file(tmp_path, monkeypatch):
    real = os.pwrite

    def pwrite(file: int, data: bytes, at: int) -> int:
        if bytes(data).endswith(b"snapshot"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    log = Log(tmp_path / "1.0.log")
    log.append(1, b"one")
    log.begin_segment(tmp_path / "1.1.log", [(7, b"snapshot")])
    log.append(2, b"two")
    await log.flushed()
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["1.0.log"]
    assert read_records(tmp_path / "1.0.log")[0] == [Record(1, b"one"), Record(2, b"two")]
