"""Measures the traffic of the node's network devices and InfiniBand ports."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dlctl.contract.measured import utilisation as names
from learner.collect.usage.files import KernelFile, Rates, open_file, read_number

_WORD_BYTES = 4
"""InfiniBand's ports count words."""
_RECEIVED, _SENT = 0, 8
"""Fields of /proc/net/dev after the device's name."""


class Network:
    """Bytes per second of the whole node."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        infiniband: Path = Path("/sys/class/infiniband"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._devices = open_file(proc / "net/dev")
        ports = "*/ports/*/counters/"
        self._received = _open_all(infiniband, f"{ports}port_rcv_data")
        self._sent = _open_all(infiniband, f"{ports}port_xmit_data")
        self._clock = clock
        self._rates = Rates()

    def sample(self) -> dict[str, float]:
        """Return the rates since the last sample."""
        totals = self._device_totals()
        if self._received:
            totals[names.INFINIBAND_RECEIVE_BYTES_PER_S] = _sum(self._received) * _WORD_BYTES
            totals[names.INFINIBAND_SEND_BYTES_PER_S] = _sum(self._sent) * _WORD_BYTES
        return self._rates.read(self._clock(), totals)

    def _device_totals(self) -> dict[str, float]:
        if self._devices is None:
            return {}
        received = sent = loopback = 0
        try:
            for line in self._devices.read().splitlines():
                device, colon, rest = line.partition(b":")
                fields = rest.split()
                if not colon or len(fields) <= _SENT:
                    continue
                if device.strip() == b"lo":
                    loopback += int(fields[_SENT])
                else:
                    received += int(fields[_RECEIVED])
                    sent += int(fields[_SENT])
        except (OSError, ValueError):
            return {}
        return {
            names.NETWORK_RECEIVE_BYTES_PER_S: received,
            names.NETWORK_SEND_BYTES_PER_S: sent,
            names.LOOPBACK_BYTES_PER_S: loopback,
        }


def _open_all(folder: Path, pattern: str) -> list[KernelFile]:
    try:
        found = [open_file(path) for path in sorted(folder.glob(pattern))]
    except OSError:
        return []
    return [file for file in found if file is not None]


def _sum(files: list[KernelFile]) -> float:
    return float(sum(read_number(file) or 0 for file in files))
