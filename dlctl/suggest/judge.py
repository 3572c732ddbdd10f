"""Judge by earlier trainings what a manifest should ask for. Pure.

Each suggestion says what it rests on, or that there is too little to suggest anything. What was
asked for stays if it is enough and not far more than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from dlctl.contract import State, VerdictKind
from dlctl.contract.measured.past import HIGH, Past, quantile
from dlctl.series.readable import memory_size
from dlctl.suggest.evidence import Suggestion, is_enough, of_learners, range_of, trainings, whole
from dlctl.suggest.spans import interval, time_limit
from dlctl.units import counted

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.sites.model import Site

_MARGIN = 1.2
_REHEARSED_MARGIN = 2.0
"""A rehearsal is over before its training may have needed most."""
_SPARE_BYTES = 128 * 2**20
"""The watchdog, the collector and the supervisor share the job's memory with a learner."""
_AGAIN = 1.5
"""The factor for a request that was too little: nobody knows how much would have been enough."""
_ALL_USED = 0.9
_MIB = 2**20


def judge(
    manifest: Manifest, site: Site, same: Sequence[Past], known: Sequence[Past]
) -> list[Suggestion]:
    """Return a suggestion for each key that usage tells something about.

    Args:
        manifest: What is asked for.
        site: Where it is to run: only times that were measured there count.
        same: The past of trainings of the same name or code, at any site.
        known: That of all trainings: faults of the site are anybody's.
    """
    here = [past for past in same if past.site == site.name]
    found = [_memory(manifest, same), time_limit(manifest, here), _cpus(manifest, same)]
    if manifest.gpus:
        found.append(_gpus(manifest, same))
    found.append(_learners(manifest, here))
    if manifest.framework.job is not None:
        everyone = [past for past in known if past.site == site.name and not past.is_rehearsal]
        found.append(interval(manifest, site, here, everyone))
    return found


# Memory -------------------------------------------------------------------------------------------


def _memory(manifest: Manifest, same: Sequence[Past]) -> Suggestion:
    """Return the p95 of the peaks × 1.2, not less than any peak, more than was too little."""
    value = manifest.memory or ""
    known, of = of_learners(same, manifest.learners, lambda past: past.memory_bytes)
    failed = _too_little(same)
    if not (known or failed):
        return Suggestion("memory", value, "", "too little: none that ended told its memory")
    needed, evidence = 0.0, list[str]()
    if known:
        peaks = [float(past.memory_bytes or 0) for past in known]
        high = quantile(peaks, HIGH)
        margin = _REHEARSED_MARGIN if known[0].is_rehearsal else _MARGIN
        needed = max(high * margin, high + _SPARE_BYTES, *peaks)
        evidence.append(f"{trainings(known)}{of}: {range_of(peaks, memory_size)}")
    if failed:
        needed = max(needed, max(failed) * _AGAIN)
        evidence.append(f"{memory_size(max(failed))} was too little {_times(len(failed))}")
    suggested = value if is_enough(manifest.memory_bytes, needed) else _size(needed)
    batch = manifest.training.batch_size
    if known and all(past.epochs and past.batch_size < batch for past in known):
        evidence.append(f"all with batches smaller than {batch}, which may take less")
        if needed <= (manifest.memory_bytes or 0):
            suggested = value
        elif not value:
            suggested = ""
    return Suggestion("memory", value, suggested, "; ".join(evidence))


def _too_little(same: Sequence[Past]) -> list[int]:
    """Return what attempts had that ran out of memory.

    One tells nothing more once a later training with as many learners has done with no more.
    """
    found = []
    for at, past in enumerate(same):
        had = max(past.memory_asked_bytes or 0, past.memory_bytes or 0)
        if past.kind == VerdictKind.OUT_OF_MEMORY and had and not any(
            later.state == State.COMPLETED and not later.is_rehearsal
            and later.learners == past.learners and 0 < (later.memory_asked_bytes or 0) <= had
            for later in same[at + 1 :]
        ):  # fmt: skip
            found.append(had)
    return found


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _size(needed_bytes: float) -> str:
    """Return a size that a manifest takes: rounded up, the finer the smaller it is."""
    mib = needed_bytes / _MIB
    step = 64 if mib <= 1024 else 256 if mib <= 8192 else 1024
    mib = step * math.ceil(mib / step)
    return f"{mib // 1024:.0f}GiB" if mib % 1024 == 0 else f"{mib:.0f}MiB"


# CPUs, GPUs, learners -----------------------------------------------------------------------------


def _cpus(manifest: Manifest, same: Sequence[Past]) -> Suggestion:
    value = "" if manifest.cpus is None else f"{manifest.cpus:g}"
    known, of = of_learners(
        same, manifest.learners,
        # Fewer CPUs may mean less memory, where a site gives it by the CPU and none is asked for.
        lambda past: None if past.memory_bytes is None else past.cpus_used,
    )  # fmt: skip
    if not known:
        return Suggestion("cpus", value, "", "too little: none that ended told the CPUs it used")
    used = [past.cpus_used or 0.0 for past in known]
    evidence = f"{trainings(known)}{of}: {range_of(used, lambda n: f'{n:.2g}')} used"
    has = manifest.cpus_per_learner()
    full = [past for past in known if (past.cpus_used or 0.0) >= _ALL_USED * past.cpus]
    if full and has >= max(past.cpus for past in full):
        evidence += ", all that they had: more `cpus` may make it faster"
        return Suggestion("cpus", value, value, evidence)
    needed = max(1, math.ceil(quantile(used, HIGH)))
    return Suggestion("cpus", value, value if needed == has else str(needed), evidence)


def _gpus(manifest: Manifest, same: Sequence[Past]) -> Suggestion:
    value = f"{manifest.gpus:g}"
    known = whole(past for past in same
                  if past.is_telling and past.gpus and past.gpus_used is not None)  # fmt: skip
    if not known:
        return Suggestion("gpus", value, "", "too little: none that ended told how busy GPUs were")
    most = max(past.gpus_used or 0 for past in known)
    idle = [past for past in known if (past.gpus_used or 0) < past.gpus]
    evidence = f"{trainings(known)}: at most {counted(most, 'GPU')} of a learner busy"
    if idle:
        evidence += f", {range_of([past.gpus - (past.gpus_used or 0) for past in idle], str)} idle"
    needed = max(1, most)  # a program may look for one, and do little with it
    return Suggestion("gpus", value, value if needed >= manifest.gpus else str(needed), evidence)


_ALONE = "one learner exchanges nothing; a training with two would tell"


def _learners(manifest: Manifest, here: Sequence[Past]) -> Suggestion:
    """Say what twice as many learners would bring; how many there should be is the user's choice.

    Computing halves, if the batch stays as large. What p learners exchange in a ring grows as
    (p - 1) / p: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", J. Parallel Distrib. Comput. 69(2), 2009.
    """
    count, value = manifest.learners, str(manifest.learners)
    if (measured := _measured(manifest, here)) is not None:
        return Suggestion("learners", value, value, measured)
    known = [past for past in here if past.learners == count and past.exchange_share is not None]
    if count < 2:
        return Suggestion("learners", value, "", _ALONE)
    if not known:
        evidence = f"too little: no exchange was measured with {counted(count, 'learner')}"
        return Suggestion("learners", value, "", evidence)
    share = median(past.exchange_share or 0.0 for past in known)
    grown = share * (2 * count - 1) / (2 * count - 2)
    faster = 1 / ((1 - share) / 2 + grown)
    evidence = f"{trainings(known)}: {100 * share:.0f} % of a step is exchange"
    more = f"{2 * count} would be {_gain(faster)}"
    return Suggestion("learners", value, value, f"{evidence}; {more}")


def _measured(manifest: Manifest, here: Sequence[Past]) -> str | None:
    """Return how much faster twice as many learners were; None if that was not tried."""
    count = manifest.learners
    one, two = ([past for past in here if past.learners == learners and past.step_s
                 and not past.is_rehearsal and past.batch_size == manifest.training.batch_size]
                for learners in (count, 2 * count))  # fmt: skip
    if not (one and two):
        return None
    faster = median(past.step_s or 0.0 for past in one) / median(past.step_s or 0.0 for past in two)
    return f"{trainings([*one, *two])}: {2 * count} were {_gain(faster)}"


def _gain(faster: float) -> str:
    pace = "no faster," if faster < 1.05 else f"{faster:.2g} times as fast"
    return f"{pace} at {2 / faster:.2g} times the cost"
