"""Read the preflight reports of an attempt's ranks; those of the attempt before may do for it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract import Preflight
from learner.job.context import CHECKED_VARIABLE
from learner.system.networks import free_port


def read_reports(job_dir: Path, attempt: int, learners: int) -> list[Preflight]:
    """Return the reports in rank order, without the ranks that have written none."""
    paths = (job_dir / contract.preflight_file(attempt, rank) for rank in range(learners))
    return [each for path in paths if (each := contract.readable_record(Preflight, path))]


def carried_over(job_dir: Path, attempt: int, learners: int) -> list[Preflight]:
    """Return the reports of the attempt before, now also this attempt's; none if it needs its own.

    `learner.lifecycle.starters.run_here` says, once, whether a preflight would find nothing
    new: learners that had trained have died, and all start again where they were.
    """
    before = os.environ.pop(CHECKED_VARIABLE, "")
    if before != str(attempt - 1):
        return []
    reports = read_reports(job_dir, attempt - 1, learners)
    if len(reports) < learners:
        return []
    # Learner 0 runs on this node; what has died may still hold the old port.
    reports[0] = replace(reports[0], port=free_port())
    for rank, report in enumerate(reports):
        path = job_dir / contract.preflight_file(attempt, rank)
        contract.write_whole(path, contract.to_json(report))
    return reports
