"""Tell in words how busy the nodes are beside the training. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dlctl.contract.measured.utilisation import CPU_PERCENT, MEMORY_RSS_BYTES, maximum
from dlctl.contract.metrics import DATA_WAIT_S, EXCHANGE_S, STEP_S, Source
from dlctl.contract.plan import Resources
from dlctl.series.curve import Curve
from dlctl.series.readable import memory_size
from dlctl.series.run import Run

_NEWEST = 60
"""Samples of 10 s: the last ten minutes."""
_GPU = re.compile(r"gpu\d+_percent")
_IDLE_PERCENT = 70.0
_MUCH_SHARE = 0.2
_GIB = 2**30
_SPARE = 0.5
"""The share of a request below which use is worth a word."""


@dataclass(frozen=True)
class Utilisation:
    """The means over the newest samples and all learners; None: not measured."""

    gpu_percent: float | None
    cpus: float | None
    """CPUs that one learner asked for."""
    memory_bytes: float | None
    """The most of any learner."""
    data_share: float | None
    """Share of a step in which it waits for data."""
    exchange_share: float | None


def utilisation(run: Run) -> Utilisation:
    """Return how busy the newest samples are."""
    node = [c for k, c in run.curves.items() if k.source == Source.NODE.value and len(c)]
    memory = [max(known) for c in node if c.key.name == maximum(MEMORY_RSS_BYTES)
              if (known := _known(c, None))]  # fmt: skip
    cpu = _mean(node, lambda name: name == CPU_PERCENT)
    return Utilisation(
        _mean(node, lambda name: bool(_GPU.fullmatch(name))), None if cpu is None else cpu / 100,
        max(memory, default=None), _share(run, DATA_WAIT_S), _share(run, EXCHANGE_S),
    )  # fmt: skip


def sentences(run: Run, resources: Resources | None) -> list[str]:
    """Return what is worth telling, one sentence each."""
    found = utilisation(run)
    lines = [_gpu(found)] if found.gpu_percent is not None else []
    if resources is not None and found.cpus is not None:
        lines.append(_cpus(found.cpus, resources.cpus_per_learner))
    if resources is not None and found.memory_bytes is not None:
        lines.append(_memory(found.memory_bytes, resources.memory_bytes_per_learner))
    if found.gpu_percent is None and (waits := _waits(found)):
        lines.append(f"On average a step {waits}.")
    return lines


def _gpu(found: Utilisation) -> str:
    assert found.gpu_percent is not None
    text = f"GPU {found.gpu_percent:.0f} % busy"
    waits = _waits(found) if found.gpu_percent < _IDLE_PERCENT else ""
    return f"{text}: on average a step {waits}." if waits else f"{text}."


def _waits(found: Utilisation) -> str:
    """Return what a step waits for, if it waits much."""
    parts = []
    if (found.data_share or 0.0) >= _MUCH_SHARE:
        parts.append(f"waits {100 * (found.data_share or 0):.0f} % for data (`training.prefetch`?)")
    if (found.exchange_share or 0.0) >= _MUCH_SHARE:
        parts.append(f"exchanges for {100 * (found.exchange_share or 0):.0f} % of its time")
    return " and ".join(parts)


def _cpus(used: float, wanted: int) -> str:
    text = f"Asked for {wanted} CPU{'s' if wanted > 1 else ''} a learner, used {used:.2g}"
    spare = used < _SPARE * wanted and wanted > 1
    return f"{text}: `cpus` can be smaller." if spare else f"{text}."


def _memory(used: float, wanted: int | None) -> str:
    if wanted is None:
        return f"Used {memory_size(used)} of memory a learner at most."
    text = f"Asked for {memory_size(wanted)} of memory a learner, used {memory_size(used)} at most"
    spare = used < _SPARE * wanted and wanted > _GIB
    return f"{text}: `memory` can be smaller." if spare else f"{text}."


def _share(run: Run, name: str) -> float | None:
    """Return the share of a part in a step, over the newest lines."""
    steps, parts = run.named(STEP_S), run.named(name)
    if not steps or not parts:
        return None
    whole, part = _known(steps[0], _NEWEST), _known(parts[0], _NEWEST)
    return fmean(part) / fmean(whole) if part and whole and fmean(whole) > 0 else None


def _mean(curves: Sequence[Curve], wanted: Callable[[str], bool]) -> float | None:
    values = [v for c in curves if wanted(c.key.name) for v in _known(c, _NEWEST)]
    return fmean(values) if values else None


def _known(curve: Curve, newest: int | None) -> list[float]:
    values = curve.points.last if newest is None else curve.points.last[-newest:]
    return [value for value in values if not math.isnan(value)]
