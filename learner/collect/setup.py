"""Put a collector together: what to measure on this node, what to parse in this training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import Plan
from dlctl.contract.metrics import MetricsLine, Source
from learner.collect.collector import Collector
from learner.collect.reported import Reported
from learner.collect.usage.cgroup import MemoryGroup
from learner.collect.usage.family import Family
from learner.collect.usage.gpu import open_gpus
from learner.collect.usage.network import Network
from learner.collect.usage.sampler import Probe, Sampler
from learner.job.context import read_plan
from learner.job.environment import PROGRESS_FILE
from learner.job.metrics import MetricsFile

if TYPE_CHECKING:
    from learner.collect.parsing import Parsing

Complain = Callable[[str], None]


def make_collector(
    job_dir: Path,
    attempt: int,
    rank: int,
    watchdog: int,
    env: Mapping[str, str],
    complain: Complain,
) -> Collector:
    """Return the collector of one learner.

    Args:
        watchdog: its process id.
        env: variables of the learner.
        complain: takes sentences for the learner's log.
    """
    plan = read_plan(job_dir, attempt)
    node = MetricsFile(
        job_dir / contract.metrics_file(attempt, rank, Source.NODE), warn=lambda _: None
    )
    sampler = make_sampler(plan, watchdog, env, node.add, complain)
    parsing = _parsing(plan, job_dir, attempt, rank, complain)
    reported = None
    if rank == 0 and (progress := env.get(PROGRESS_FILE)):
        listed = MetricsFile(
            job_dir / contract.metrics_file(attempt, rank, Source.PROGRESS), warn=lambda _: None
        )
        reported = Reported(Path(progress), listed.add)
    return Collector(job_dir / contract.attempt_dir(attempt), sampler, parsing, complain, reported)


def _parsing(
    plan: Plan, job_dir: Path, attempt: int, rank: int, complain: Complain
) -> Parsing | None:
    if not plan.evaluation_metrics:
        return None
    from learner.collect.asked import make_parsing

    try:
        return make_parsing(plan, job_dir, attempt, rank, complain)
    except ValueError as error:
        complain(f"evaluation_metrics can't be used: {error}.")
        return None


def make_sampler(
    plan: Plan,
    watchdog: int,
    env: Mapping[str, str],
    write: Callable[[MetricsLine], None],
    complain: Complain,
) -> Sampler:
    """Return what measures the learner and its node."""
    probes: list[Probe] = [
        Family(watchdog, without=[os.getpid()]),
        Network(),
        MemoryGroup(watchdog),
    ]
    try:
        gpus = open_gpus(env, plan.resources.gpus_per_learner)
        if gpus is not None:
            probes.append(gpus)
    except ImportError:
        complain(
            "the GPUs are not measured, because the node's Python lacks the package nvidia-ml-py."
        )
    progress = env.get(PROGRESS_FILE)
    return Sampler(probes, write, Path(progress) if progress else None)
