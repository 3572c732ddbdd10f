"""The logs of a broker's incarnations: which one counts, and what it holds.

An incarnation acknowledges nothing before its snapshot is complete, and the record that says so is
on the disk. So the newest log with a complete snapshot holds everything; those before it and after
it hold nothing more. The log of one incarnation that grows long goes on in a further file, a
segment, for which the same is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from search.journal.lease import Watch, incarnations, wait_for_lapse
from search.journal.records import Record, read_records

SNAPSHOT_COMPLETE = ord("S")


@dataclass(frozen=True)
class Seal:
    """Says that a log is closed: written as `<incarnation>.sealed` by its successor."""

    by: int
    bytes_read: int
    """What the successor took over. What follows was never acknowledged."""
    schema_version: int = contract.SCHEMA_VERSION


@dataclass(frozen=True)
class Adopted:
    """What a new incarnation takes over."""

    incarnation: int
    """0: nothing; the broker never acknowledged anything."""
    records: list[Record]
    torn_bytes: int


def log_path(folder: Path, incarnation: int, segment: int = 0) -> Path:
    """Return a segment of the log of an incarnation."""
    return folder / f"{incarnation}.{segment}.log"


def _segments(folder: Path, incarnation: int) -> list[Path]:
    """Return the segments of an incarnation's log, the newest first."""
    found = folder.glob(f"{incarnation}.*.log")
    return sorted(found, key=lambda path: int(path.stem.partition(".")[2]), reverse=True)


def adopt(
    folder: Path, incarnation: int, default_lease_s: float, watch: Watch | None = None
) -> Adopted:
    """Wait until all earlier incarnations have lapsed; seal their logs; return what counts.

    Args:
        folder: The broker's.
        incarnation: The new one.
        default_lease_s: How long to wait for an earlier one whose lease can't be read.
        watch: Has watched the last one for a while.
    """
    earlier = [number for number in incarnations(folder) if number < incarnation]
    found = Adopted(0, [], 0)
    for number in reversed(earlier):
        if not (folder / f"{number}.sealed").exists():
            if watch is None or watch.incarnation != number:
                watch = Watch(folder, number, default_lease_s)
            wait_for_lapse(watch)
    for number in reversed(earlier):
        size = 0
        for path in _segments(folder, number):
            if found.incarnation != 0:
                break
            records, size = read_records(path)
            if any(each.kind == SNAPSHOT_COMPLETE for each in records):
                found = Adopted(number, records, path.stat().st_size - size)
        _seal(folder, number, Seal(incarnation, size))
    return found


def remove_before(folder: Path, incarnation: int) -> None:
    """Remove the logs of incarnations before one; its own log has all that they held."""
    for number in incarnations(folder):
        if number < incarnation:
            for path in _segments(folder, number):
                path.unlink(missing_ok=True)
            (folder / f"{number}.sealed").unlink(missing_ok=True)
            (folder / f"{number}.lease").unlink(missing_ok=True)


def _seal(folder: Path, number: int, seal: Seal) -> None:
    path = folder / f"{number}.sealed"
    if not path.exists():
        contract.write_whole(path, contract.to_json(seal), mode=0o600)
