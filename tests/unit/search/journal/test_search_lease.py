"""Who may acknowledge in a broker's name: one incarnation, and its successor only after it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlctl import contract
from search.journal import epochs
from search.journal.epochs import (
    HOLDS,
    LEFT,
    RETIRED,
    SNAPSHOT_COMPLETE,
    Holder,
    Lease,
    LeaseWatch,
    adopt,
    incarnations,
    log_path,
    remove_before,
    wait_for_lapse,
)
from search.journal.log import encode

LEASE_S = 0.5


def write_lease(folder: Path, number: int, **changes: object) -> Holder:
    folder.mkdir(exist_ok=True)
    holder = replace(Holder("elsewhere", "boot", 1, "1", LEASE_S, beat=1), **changes)
    contract.write_whole(folder / f"{number}.lease", contract.to_json(holder))
    return holder


def lapse_after(folder: Path, beats: int, lease_s: float = LEASE_S) -> float:
    """Return how long a successor waits for a holder that beats so often, each 0.3 s."""
    now_s = 0.0

    def sleep(s: float) -> None:
        nonlocal now_s
        now_s += s
        if (beat := int(now_s / 0.3) + 1) <= beats:
            write_lease(folder, 1, beat=beat)

    wait_for_lapse(LeaseWatch(folder, 1, lease_s, clock=lambda: now_s), sleep)
    return now_s


def test_a_successor_waits_for_the_whole_lease_after_the_last_change(tmp_path):
    write_lease(tmp_path, 1)
    assert LEASE_S < lapse_after(tmp_path, beats=0) < LEASE_S + 0.3
    assert 0.9 + LEASE_S < lapse_after(tmp_path, beats=4) < 0.9 + LEASE_S + 0.4


def test_a_lease_that_can_not_be_read_is_waited_for_too(tmp_path):
    (tmp_path / "1.lease").write_text("")
    assert lapse_after(tmp_path, beats=0, lease_s=7.0) > 7.0


def test_a_process_that_died_here_is_not_waited_for(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from search.journal.epochs import Lease;"
        "Lease.claim(Path(sys.argv[1]), 60.0); os._exit(0)"
    )
    root = Path(__file__).parents[4]
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment)
    wait_for_lapse(LeaseWatch(tmp_path, 1, 60.0), lambda _: pytest.fail("it was waited for"))


def test_a_holder_ends_when_a_successor_has_claimed(tmp_path):
    first = Lease.claim(tmp_path, 10 * LEASE_S)
    try:
        assert first.held() and first.incarnation == 1
        second = Lease.claim(tmp_path, LEASE_S)
        second.close()
        assert second.incarnation == 2
        end = time.monotonic() + 60
        while not first.superseded:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not first.held()
    finally:
        first.close()


def test_a_holder_that_can_not_write_stops_acknowledging(tmp_path):
    lease = Lease.claim(tmp_path / "b", LEASE_S)
    try:
        (tmp_path / "b").rename(tmp_path / "moved")
        time.sleep(LEASE_S)
        assert not lease.held()
    finally:
        lease.close()


def at_once(claim: Callable[[], Any]) -> list[Any]:
    """Return what eight threads get that claim at once."""
    with ThreadPoolExecutor(8) as threads:
        return [each.result() for each in [threads.submit(claim) for _ in range(8)]]


def test_two_that_claim_at_once_get_different_numbers(tmp_path):
    got = at_once(lambda: Lease.claim(tmp_path, LEASE_S))
    assert sorted(lease.incarnation for lease in got) == list(range(1, 9))
    for lease in got:
        lease.close()


def test_of_those_that_adopt_an_incarnation_at_once_one_succeeds(tmp_path):
    write_lease(tmp_path, 1)
    got = at_once(lambda: Lease.claim_after(tmp_path, 1, LEASE_S))
    (lease,) = filter(None, got)
    assert lease.incarnation == 2 and len(got) == 8
    lease.close()


@pytest.mark.parametrize("state", [LEFT, RETIRED])
def test_who_ended_in_order_is_not_waited_for(tmp_path, state):
    lease = Lease.claim(tmp_path, 60.0)
    watch = LeaseWatch(tmp_path, 1, 60.0)
    assert watch.look() == HOLDS
    lease.close(state)
    assert watch.look() == state
    write_lease(tmp_path, 1, state=state, lease_s=60.0)  # on another host
    wait_for_lapse(watch, lambda s: pytest.fail("it waited"))


def test_a_holder_that_sees_its_successor_says_that_it_ends(tmp_path):
    first = Lease.claim(tmp_path, LEASE_S)
    second = Lease.claim_after(tmp_path, 1, LEASE_S)
    assert second is not None
    watch = LeaseWatch(tmp_path, 1, 60.0)
    end = time.monotonic() + 60
    while watch.look() == HOLDS:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not first.held()
    first.close()
    second.close()


def log(folder: Path, number: int, *records: tuple[int, bytes], torn: bytes = b"") -> None:
    write_lease(folder, number, lease_s=0.05)
    log_path(folder, number).write_bytes(b"".join(encode(*each) for each in records) + torn)


def test_the_newest_log_with_a_whole_snapshot_counts(tmp_path):
    done = (SNAPSHOT_COMPLETE, b"")
    log(tmp_path, 1, (1, b"old"), done)
    log(tmp_path, 2, (1, b"snapshot"), done, (2, b"later"), torn=b"xxx")
    log(tmp_path, 3, (1, b"half a snapshot"))
    found = adopt(tmp_path, 4, 0.05)
    assert found.incarnation == 2 and found.torn_bytes == 3
    assert [each.payload for each in found.records] == [b"snapshot", b"", b"later"]
    assert {path.stem for path in tmp_path.glob("*.sealed")} == {"1", "2", "3"}


def test_the_newest_segment_with_a_whole_snapshot_counts(tmp_path):
    done = (SNAPSHOT_COMPLETE, b"")
    log(tmp_path, 1, (1, b"first"), done)
    for segment, records in ((9, [(1, b"nine"), done]), (10, [(1, b"ten"), done, (2, b"later")])):
        log_path(tmp_path, 1, segment).write_bytes(b"".join(encode(*each) for each in records))
    log_path(tmp_path, 1, 11).write_bytes(encode(1, b"half a snapshot"))
    log(tmp_path, 11, (1, b"half a snapshot, too"))
    found = adopt(tmp_path, 12, 0.05)
    assert found.incarnation == 1
    assert [each.payload for each in found.records] == [b"ten", b"", b"later"]
    write_lease(tmp_path, 12)
    remove_before(tmp_path, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["12.lease"]


def test_a_log_whose_holder_may_still_acknowledge_is_not_read(tmp_path, monkeypatch):
    log(tmp_path, 1, (SNAPSHOT_COMPLETE, b""))

    def acknowledges_meanwhile(watch: LeaseWatch) -> None:
        log(tmp_path, watch.incarnation, (SNAPSHOT_COMPLETE, b""), (1, b"acknowledged"))

    monkeypatch.setattr(epochs, "wait_for_lapse", acknowledges_meanwhile)
    found = adopt(tmp_path, 2, 60.0)
    assert [each.payload for each in found.records] == [b"", b"acknowledged"]


def test_a_sealed_log_is_not_waited_for_again(tmp_path, monkeypatch):
    log(tmp_path, 1, (SNAPSHOT_COMPLETE, b""))
    adopt(tmp_path, 2, 0.05)
    monkeypatch.setattr(epochs, "wait_for_lapse", lambda _: pytest.fail("it was waited for"))
    assert adopt(tmp_path, 3, 60.0).incarnation == 1


def test_nothing_is_adopted_where_nothing_was(tmp_path):
    assert adopt(tmp_path, 1, 60.0).incarnation == 0


def test_logs_before_a_whole_snapshot_are_removed(tmp_path):
    for number in (1, 2):
        log(tmp_path, number, (SNAPSHOT_COMPLETE, b""))
    adopt(tmp_path, 3, 0.05)
    write_lease(tmp_path, 3)
    remove_before(tmp_path, 3)
    assert incarnations(tmp_path) == [3]
    assert [path.name for path in tmp_path.iterdir()] == ["3.lease"]
