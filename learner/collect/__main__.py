"""Collect beside one learner: `python -m learner.collect <job dir> <attempt> <rank> <watchdog>`.

Standard input is a pipe from the watchdog: its end, also by the watchdog's death, ends the
collector after a last pass. A signal to the job is not meant for it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from dlctl import contract
from dlctl.contract.metrics import Source
from learner.collect.collector import Collector, Reported
from learner.collect.state import Complaints
from learner.collect.usage.cgroup import MemoryGroup
from learner.collect.usage.family import Family
from learner.collect.usage.gpu import open_gpus
from learner.collect.usage.network import Network
from learner.collect.usage.sampler import Probe, Sampler
from learner.collect.usage.totals import Totals
from learner.job.context import read_plan
from learner.job.environment import PROGRESS_FILE
from learner.job.metrics import MetricsFile

_LAST_PASS_S = 6
"""The kernel ends the collector this long after the learner, whatever it does."""


def main(arguments: list[str]) -> int:
    """Collect until standard input ends."""
    job_dir, attempt, rank = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    complaints = Complaints(job_dir / contract.learner_log(attempt, rank))
    try:
        collector = make_collector(
            job_dir, attempt, rank, int(arguments[3]), os.environ, complaints.say
        )
        collector.run(sys.stdin.fileno(), finishing=lambda: signal.alarm(_LAST_PASS_S))
    except Exception as error:  # noqa: BLE001 - the training goes on whatever happens here
        complaints.say(
            "utilisation and parsed metrics are missing from here on: "
            f"{type(error).__name__}: {error}"
        )
        return 1
    return 0


def make_collector(
    job_dir: Path, attempt: int, rank: int, watchdog: int, env: Mapping[str, str],
    complain: Callable[[str], None],
) -> Collector:  # fmt: skip
    """Return the collector of one learner.

    Args:
        watchdog: its process id.
    """

    def output(source: Source) -> MetricsFile:
        path = job_dir / contract.metrics_file(attempt, rank, source)
        return MetricsFile(path, warn=lambda _: None)

    plan = read_plan(job_dir, attempt)
    family = Family(watchdog, without=[os.getpid()])
    probes: list[Probe] = [family, Network(), MemoryGroup(watchdog)]
    try:
        gpus = open_gpus(env, plan.resources.gpus_per_learner)
        if gpus is not None:
            probes.append(gpus)
    except ImportError:
        complain(
            "the GPUs are not measured, because the node's Python lacks the package nvidia-ml-py."
        )
    totals = Totals(job_dir / contract.use_file(attempt, rank), family.peak_bytes)
    progress = Path(env[PROGRESS_FILE]) if env.get(PROGRESS_FILE) else None
    sampler = Sampler(probes, output(Source.NODE).add, progress, totals=totals)
    parsing = None
    if plan.evaluation_metrics:
        from learner.collect.parsed_files import make_parsing

        try:
            parsing = make_parsing(plan, job_dir, attempt, rank, complain)
        except ValueError as error:
            complain(f"evaluation_metrics can't be used: {error}.")
    reported = None
    if rank == 0 and progress is not None:
        reported = Reported(progress, output(Source.PROGRESS).add)
    return Collector(job_dir / contract.attempt_dir(attempt), sampler, parsing, complain, reported)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
