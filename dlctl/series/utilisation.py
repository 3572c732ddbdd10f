"""Tell in words what a training uses of what it asked for: one figure for every face. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from dlctl.contract.measured.utilisation import (
    CPU_PERCENT,
    GPU_PERCENT,
    GPU_POWER_W,
    MEMORY_RSS_BYTES,
    gpu_name,
    maximum,
)
from dlctl.contract.metrics import (
    DATA_WAIT_S,
    EXCHANGE_S,
    MEMORY_BYTES,
    STEP_PARTS,
    STEP_S,
    Source,
)
from dlctl.contract.plan import Resources
from dlctl.series.curve import Curve
from dlctl.series.readable import memory_size
from dlctl.series.run import Run
from dlctl.units import counted

_GPU = re.compile(r"gpu\d+_(\w+)")
_OWN = {MEMORY_BYTES, STEP_S, *STEP_PARTS}
"""Metrics that learners tell themselves."""
_IDLE_PERCENT = 70.0
_MUCH_SHARE = 0.2
_GIB = 2**30
_SPARE = 0.5
"""The share of a request below which use is worth a word."""


@dataclass(frozen=True)
class Use:
    """The use of one learner: means over all learners and all that was measured; None: unknown."""

    cpus: float | None = None
    memory_bytes: float | None = None
    """The most of any learner."""
    gpu_percent: float | None = None
    gpu_power_w: float | None = None
    """Of one GPU."""
    step_shares: Mapping[str, float] = field(default_factory=dict)
    """Part of a step → its share of the step's time."""


def use_of(run: Run) -> Use:
    """Return what a training has used so far."""
    node, own = dict[str, list[Curve]](), dict[str, list[Curve]]()
    for key, curve in run.curves.items():  # once: there may be a million names
        if key.source == Source.NODE.value:
            gpu = _GPU.fullmatch(key.name)
            node.setdefault(gpu_name(0, gpu[1]) if gpu else key.name, []).append(curve)
        elif key.name in _OWN:
            own.setdefault(key.name, []).append(curve)
    cpu = _mean(node.get(CPU_PERCENT))
    peaks = [*node.get(maximum(MEMORY_RSS_BYTES), ()), *own.get(MEMORY_BYTES, ())]
    memory = [most for curve in peaks if not math.isnan(most := curve.highest())]
    step_s = _mean(own.get(STEP_S))
    parts = {word: _mean(own.get(name)) for name, word in STEP_PARTS.items()}
    return Use(
        None if cpu is None else cpu / 100, max(memory, default=None),
        _mean(node.get(gpu_name(0, GPU_PERCENT))), _mean(node.get(gpu_name(0, GPU_POWER_W))),
        {word: part_s / step_s for word, part_s in parts.items() if part_s is not None and step_s},
    )  # fmt: skip


def sentences(found: Use, resources: Resources | None) -> list[str]:
    """Return what is worth telling, one sentence each."""
    lines = [_gpu(found)] if found.gpu_percent is not None else []
    if resources is not None and found.cpus is not None:
        lines.append(_cpus(found.cpus, resources.cpus_per_learner))
    if resources is not None and found.memory_bytes is not None:
        lines.append(_memory(found.memory_bytes, resources.memory_bytes_per_learner))
    if found.gpu_percent is None and (waits := _waits(found)):
        lines.append(f"On average a step {waits}.")
    return lines


def shares_in_words(found: Use) -> str:
    """Return `of a step's time exchange 52 %, data 1 %`; "" if no step was measured."""
    known = ", ".join(f"{word} {percent(share)}" for word, share in found.step_shares.items())
    return known and f"of a step's time {known}"


def percent(share: float) -> str:
    """Return `52 %`, or `0.05 %` of a small share."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 1 or value == 0 else f"{value:.1g} %"


def _gpu(found: Use) -> str:
    assert found.gpu_percent is not None
    text = f"GPU {found.gpu_percent:.0f} % busy"
    waits = _waits(found) if found.gpu_percent < _IDLE_PERCENT else ""
    return f"{text}: on average a step {waits}." if waits else f"{text}."


def _waits(found: Use) -> str:
    """Return what a step waits for, if it waits much."""
    parts = []
    if (data := found.step_shares.get(STEP_PARTS[DATA_WAIT_S], 0.0)) >= _MUCH_SHARE:
        parts.append(f"waits {percent(data)} of its time for data (`training.prefetch`?)")
    if (exchange := found.step_shares.get(STEP_PARTS[EXCHANGE_S], 0.0)) >= _MUCH_SHARE:
        parts.append(f"exchanges for {percent(exchange)} of its time")
    return " and ".join(parts)


def _cpus(used: float, wanted: int) -> str:
    text = f"Asked for {counted(wanted, 'CPU')} a learner, used {used:.2g} on average"
    spare = used < _SPARE * wanted and wanted > 1
    return f"{text}: `cpus` can be smaller." if spare else f"{text}."


def _memory(used: float, wanted: int | None) -> str:
    if wanted is None:
        return f"Used {memory_size(used)} of memory a learner at most."
    text = f"Asked for {memory_size(wanted)} of memory a learner, used {memory_size(used)} at most"
    spare = used < _SPARE * wanted and wanted > _GIB
    return f"{text}: `memory` can be smaller." if spare else f"{text}."


def _mean(curves: Iterable[Curve] | None) -> float | None:
    means = [mean for curve in curves or () if not math.isnan(mean := curve.mean())]
    return fmean(means) if means else None
