"""The processes of a learner, and what they use: processor, memory, page faults, files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dlctl.contract.ground.processes import stat_cells
from dlctl.contract.measured import utilisation as names
from learner.collect.usage.files import KernelFile, Rates, counters, open_file
from learner.system.processes import descendants

_LOOK_SHARE = 0.002
"""The share of a core for finding new processes: thousands take tens of milliseconds."""
_IO = {
    b"rchar": names.READ_BYTES_PER_S,
    b"wchar": names.WRITE_BYTES_PER_S,
    b"read_bytes": names.DISK_READ_BYTES_PER_S,
    b"write_bytes": names.DISK_WRITE_BYTES_PER_S,
}


class Family:
    """All processes below the watchdog but the collector's own.

    Args:
        watchdog: whose descendants to look at.
        without: processes that don't count.
    """

    def __init__(
        self,
        watchdog: int,
        without: Iterable[int] = (),
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watchdog, self._without = watchdog, frozenset(without)
        self._proc, self._clock = proc, clock
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._known: dict[int, tuple[KernelFile, KernelFile | None]] = {}
        self._look_at = -1.0
        self._rates = Rates()

    def sample(self) -> dict[str, float]:
        """Return what the processes use now; rates are since the last sample."""
        now = self._clock()
        if now >= self._look_at or not self._known:
            self._look()
            self._look_at = now + (self._clock() - now) / _LOOK_SHARE
        totals, pages = self._sum()
        if not self._known:
            return {}
        rates = self._rates.read(now, totals)
        if names.CPU_PERCENT in rates:
            rates[names.CPU_PERCENT] *= 100
        rates[names.MEMORY_RSS_BYTES] = float(pages * self._page_bytes)
        rates[names.PROCESSES] = float(len(self._known))
        return rates

    def peak_bytes(self) -> int:
        """Return the most resident memory that the processes of now ever had, together."""
        found = 0
        for pid in self._known:
            with contextlib.suppress(OSError, ValueError, IndexError):
                status = (self._proc / str(pid) / "status").read_bytes()
                found += 1024 * int(status.partition(b"VmHWM:")[2].split(None, 1)[0])
        return found

    def _look(self) -> None:
        found = set(descendants(self._watchdog, self._without, self._proc))
        for pid in self._known.keys() - found:
            self._forget(pid)
        for pid in found - self._known.keys():
            stat = open_file(self._proc / str(pid) / "stat")
            if stat is not None:
                # Another user's process, or one with special rights, hides its files.
                self._known[pid] = stat, open_file(self._proc / str(pid) / "io")

    def _forget(self, pid: int) -> None:
        for file in self._known.pop(pid):
            if file is not None:
                file.close()

    def _sum(self) -> tuple[dict[str, float], int]:
        """Return the sums of all counters, and the resident pages."""
        totals: dict[str, float] = dict.fromkeys(_IO.values(), 0.0)
        ticks = faults = major = pages = 0
        for pid, (stat, io) in list(self._known.items()):
            try:
                numbers = [0, *map(int, stat_cells(stat.read())[1:22])]  # the state counts as 0
            except (OSError, ValueError, IndexError):
                self._forget(pid)
                continue
            # With the children that it has waited for: a shell's programs come and go.
            ticks += sum(numbers[11:15])
            faults += sum(numbers[7:11])
            major += numbers[9] + numbers[10]
            pages += numbers[21]
            for name, value in counters(io).items():
                if name in _IO:
                    totals[_IO[name]] += value
        totals[names.CPU_PERCENT] = ticks / self._ticks_per_s
        totals[names.PAGE_FAULTS_PER_S] = faults
        totals[names.MAJOR_PAGE_FAULTS_PER_S] = major
        return totals, pages
