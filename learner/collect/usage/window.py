"""Mean and maximum of the samples of a while."""

from __future__ import annotations

from collections.abc import Mapping

from dlctl.contract.measured.utilisation import WITHOUT_MAXIMUM, maximum

_RATE = "_per_s"


class Window:
    """The samples since the last line."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int, float]] = {}
        self._seen: set[str] = set()
        """Rates that were not always 0; the others would make half of a line."""

    def add(self, sample: Mapping[str, float]) -> None:
        """Count a sample; a name may be absent from some."""
        for name, value in sample.items():
            total, count, largest = self._sums.get(name, (0.0, 0, value))
            self._sums[name] = total + value, count + 1, max(largest, value)

    def take(self) -> dict[str, float]:
        """Return the mean and the maximum of each name, and begin anew."""
        found: dict[str, float] = {}
        for name, (total, count, largest) in self._sums.items():
            if largest:
                self._seen.add(name)
            elif name.endswith(_RATE) and name not in self._seen:
                continue
            found[name] = _short(total / count)
            if not (name in WITHOUT_MAXIMUM or _of_gpu(name) in WITHOUT_MAXIMUM):
                found[maximum(name)] = _short(largest)
        self._sums.clear()
        return found


def _of_gpu(name: str) -> str:
    return name.partition("_")[2] if name.startswith("gpu") else name


def _short(value: float) -> float:
    """Return a value without digits that nobody measured."""
    return round(value) if abs(value) >= 1000 else round(value, 3)
