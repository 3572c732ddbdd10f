"""The logs of a broker's incarnations, which one counts, and the lease of each.

An incarnation acknowledges nothing before its snapshot is complete, and the record that says so is
on the disk. So the newest log with a complete snapshot holds everything; those before it and after
it hold nothing more. The log of one incarnation that grows long goes on in a further file, a
segment, for which the same is true.

A lease is a file that its holder keeps changing. The holder rewrites `<incarnation>.lease` and
acknowledges only while its last rewriting is younger than the lease. A successor claims the next
number, which the holder sees and ends at, and watches the file. When it has not changed for the
whole lease by the successor's own clock, the holder's has lapsed too: only rates of clocks are
compared, never times of different hosts. A holder that ends in order says so in the file, and
nobody waits for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dlctl import contract
from dlctl.contract.ground.processes import pid_space, started
from search.journal.log import Record, read_records

SNAPSHOT_COMPLETE = ord("S")


@dataclass(frozen=True)
class Adopted:
    """The state that a new incarnation takes over."""

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
    folder: Path, incarnation: int, default_lease_s: float, watch: LeaseWatch | None = None
) -> Adopted:
    """Wait until all earlier incarnations have lapsed; seal their logs; return what counts.

    Args:
        default_lease_s: How long to wait for an earlier one whose lease can't be read.
        watch: Has watched the last one for a while.
    """
    earlier = [number for number in incarnations(folder) if number < incarnation]
    found = Adopted(0, [], 0)
    for number in reversed(earlier):
        if not (folder / f"{number}.sealed").exists():
            if watch is None or watch.incarnation != number:
                watch = LeaseWatch(folder, number, default_lease_s)
            wait_for_lapse(watch)
    for number in reversed(earlier):
        for path in _segments(folder, number):
            if found.incarnation != 0:
                break
            records, size = read_records(path)
            if any(each.kind == SNAPSHOT_COMPLETE for each in records):
                found = Adopted(number, records, path.stat().st_size - size)
        (folder / f"{number}.sealed").touch(mode=0o600)  # its successor has read the log
    return found


def remove_before(folder: Path, incarnation: int) -> None:
    """Remove the logs of incarnations before one; its own log has all that they held."""
    for number in incarnations(folder):
        if number < incarnation:
            for path in _segments(folder, number):
                path.unlink(missing_ok=True)
            (folder / f"{number}.sealed").unlink(missing_ok=True)
            (folder / f"{number}.lease").unlink(missing_ok=True)


_BEATS = 5
"""A holder rewrites the file this often in one lease."""
_SHARE = 0.8
"""A holder stops acknowledging after this share of the lease: clocks run at different rates."""
LOOK_S = 0.1
HOLDS, LEFT, RETIRED = "holds", "left", "retired"
"""The holder may acknowledge; it has ended; it has ended and left nothing to adopt."""


def boot_clock() -> float:
    """Return seconds that no setting of the clock changes and that count while a node sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Holder:
    """The contents of a lease's file."""

    host: str
    boot: str
    """Different after each start of the host, and in each container with processes of its own."""
    pid: int
    started: str
    """When the process started, as the kernel counts it."""
    lease_s: float
    beat: int = 0
    state: str = HOLDS
    schema_version: int = contract.SCHEMA_VERSION


class Lease:
    """The lease that this process holds on an incarnation of a broker."""

    def __init__(self, folder: Path, incarnation: int, lease_s: float) -> None:
        self._folder, self.incarnation, self._lease_s = folder, incarnation, lease_s
        self._until = 0.0
        self._superseded = False
        self._holder = _own(lease_s)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    @classmethod
    def claim(cls, folder: Path, lease_s: float) -> Lease:
        """Claim the next incarnation of the broker whose folder this is, and begin to hold it."""
        folder.mkdir(parents=True, exist_ok=True)
        number = max(incarnations(folder), default=0)
        while True:
            if (lease := cls.claim_after(folder, number, lease_s)) is not None:
                return lease
            number += 1

    @classmethod
    def claim_after(cls, folder: Path, number: int, lease_s: float) -> Lease | None:
        """Claim the incarnation behind one; return None if somebody else has claimed it."""
        lease = cls(folder, number + 1, lease_s)
        try:
            descriptor = os.open(lease._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return None
        os.close(descriptor)
        contract.sync_directory(folder)
        lease._beat()
        lease._thread.start()
        return lease

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.incarnation}.lease"

    def held(self) -> bool:
        """Return whether this process may acknowledge at this moment."""
        return not self._superseded and boot_clock() < self._until

    @property
    def superseded(self) -> bool:
        """Return whether a later incarnation was claimed: then this one must end."""
        return self._superseded

    def close(self, state: str = LEFT) -> None:
        """Stop holding it, and say how the holder has ended. The file stays."""
        self._ending.set()
        self._thread.join(timeout=5)
        self._until = 0.0
        if not self._superseded:
            with contextlib.suppress(OSError):  # then the successor waits until it has lapsed
                self._write(state)

    def _keep(self) -> None:
        while not self._ending.wait(self._lease_s / _BEATS):
            with contextlib.suppress(OSError):  # not held on: it lapses, or the next beat succeeds
                self._beat()

    def _beat(self) -> None:
        """Rewrite the file, and go on holding if nobody had claimed a later one by then.

        A process that claims after that sees the file change.
        """
        if self._superseded:
            return
        began = boot_clock()
        if not self._path.exists():
            raise FileNotFoundError(self._path)  # somebody removed or moved the folder
        self._write(HOLDS)
        if incarnations(self._folder)[-1] > self.incarnation:
            self._superseded = True
            self._write(LEFT)
            return
        self._until = began + self._lease_s * _SHARE

    def _write(self, state: str) -> None:
        self._holder = replace(self._holder, beat=self._holder.beat + 1, state=state)
        contract.write_whole(self._path, contract.to_json(self._holder), mode=0o600)


def incarnations(folder: Path) -> list[int]:
    """Return the numbers of the incarnations that were claimed, in order."""
    return sorted(int(p.stem) for p in folder.glob("*.lease") if p.stem.isdecimal())


class LeaseWatch:
    """Watches the lease of an incarnation, to find out when its holder may acknowledge no more.

    Args:
        default_s: The lease if the file is empty: its writer died, or is just beginning.
    """

    def __init__(
        self,
        folder: Path,
        incarnation: int,
        default_s: float,
        *,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.incarnation = incarnation
        self._path, self._default_s, self._clock = folder / f"{incarnation}.lease", default_s, clock
        self._holder, self._since = contract.readable_record(Holder, self._path), clock()

    def look(self) -> str:
        """Return how the holder has ended; `holds`: it may acknowledge as far as is known.

        A holder whose file stayed as it is for the whole lease has left, too.
        """
        now = contract.readable_record(Holder, self._path)
        if now != self._holder:
            self._holder, self._since = now, self._clock()
        if now is not None and now.state != HOLDS:
            return now.state
        lease_s = self._default_s if now is None else now.lease_s
        return LEFT if self._clock() - self._since > lease_s else HOLDS

    def has_died_here(self) -> bool:
        """Return whether the holder ran on this host, and certainly has died."""
        return self._holder is not None and _certainly_dead(self._holder)


def wait_for_lapse(watch: LeaseWatch, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return once nobody can acknowledge in the name of an earlier incarnation any more."""
    while watch.look() == HOLDS and not watch.has_died_here():
        sleep(LOOK_S)


def _own(lease_s: float) -> Holder:
    return Holder(
        socket.gethostname(), pid_space(), os.getpid(), str(started(os.getpid())), lease_s
    )


def _certainly_dead(holder: Holder) -> bool:
    own = _own(holder.lease_s)
    if not own.boot or (holder.host, holder.boot) != (own.host, own.boot):
        return False
    return str(started(holder.pid)) != holder.started
