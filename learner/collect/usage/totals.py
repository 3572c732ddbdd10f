"""Keeps a small file of the most that a learner has used since the attempt began."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract.measured.past import LearnerUse
from dlctl.contract.measured.utilisation import (
    CGROUP_MEMORY_BYTES,
    CPU_PERCENT,
    MEMORY_RSS_BYTES,
    maximum,
)

_GPU = re.compile(r"gpu(\d+)_percent")
_GROWN = 1.02
_EVERY_S = 300.0
"""Without a new peak the file is written this seldom: there may be hundreds on one file system."""


class Totals:
    """Counts the lines of metrics; a collector that follows another one goes on from its file.

    Args:
        peak_bytes: Returns the most memory that the processes of now ever had: samples have gaps.
    """

    def __init__(
        self, path: Path, peak_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._path, self._peak_bytes, self._clock = path, peak_bytes, clock
        self._use = contract.readable_record(LearnerUse, path) or LearnerUse()
        self._written, self._written_at = self._use, -math.inf

    def add(self, values: Mapping[str, float]) -> None:
        """Count a line."""
        known, lines = self._use, self._use.lines + 1
        cpus = dict(known.cpu_tenths)
        if (percent := values.get(CPU_PERCENT)) is not None:
            tenths = str(math.ceil(percent / 10))
            cpus[tenths] = cpus.get(tenths, 0) + 1
        busy, shares = dict(known.gpu_percent), dict(known.gpu_memory_share)
        for name, value in values.items():
            if match := _GPU.fullmatch(name):
                before = busy.get(match[1], value)
                busy[match[1]] = before + (value - before) / lines
                used = values.get(f"gpu{match[1]}_memory_bytes_max", 0.0)
                whole = values.get(f"gpu{match[1]}_memory_total_bytes", 0.0)
                share = used / whole if whole else 0.0
                shares[match[1]] = round(max(shares.get(match[1], 0.0), share), 3)
        memory = max(values.get(maximum(MEMORY_RSS_BYTES), 0), self._peak_bytes())
        job = values.get(maximum(CGROUP_MEMORY_BYTES), 0)
        self._use = replace(
            known, cpu_tenths=cpus, gpu_percent=busy, gpu_memory_share=shares, lines=lines,
            memory_bytes=max(known.memory_bytes, int(memory)),
            job_memory_bytes=max(known.job_memory_bytes, int(job)),
        )  # fmt: skip
        if self._has_grown() or self._clock() - self._written_at > _EVERY_S:
            self.write()

    def _has_grown(self) -> bool:
        now, before = self._use, self._written
        return (now.memory_bytes > _GROWN * before.memory_bytes
                or now.job_memory_bytes > _GROWN * before.job_memory_bytes)  # fmt: skip

    def write(self) -> None:
        """Write the file; if that fails, an older one stays."""
        self._written, self._written_at = self._use, self._clock()
        with contextlib.suppress(OSError):
            contract.write_whole(self._path, contract.to_json(self._use))
