"""A job that was submitted beforehand starts the next attempt, for nodes that can't submit jobs."""

from __future__ import annotations

from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan, StarterKind, VerdictKind
from learner.job.batch import batch_system
from learner.lifecycle.starters.base import Situation


class Successor:
    """Leaves the attempt to the first job that waits for this one to end."""

    kind = StarterKind.SUCCESSOR
    runs_here = False
    begins = False

    def objection(self, situation: Situation) -> str:
        """Return why the waiting job can't run the attempt, or that there is none."""
        if not _after(situation.job_dir, situation.job_id):
            return "no job waits for this one"
        if situation.action.memory_factor > 1:
            return "the waiting job has too little memory"
        if situation.bad_hosts or situation.kind is VerdictKind.GPU_ERROR:
            return "the waiting job may get the bad node"
        return ""

    def start(self, situation: Situation) -> str:
        """Do nothing: the job begins once this one has ended."""
        return f"Job {_after(situation.job_dir, situation.job_id)[0]}, which waits, starts it."


def _lists(job_dir: Path) -> list[list[str]]:
    """Return the ids of jobs that were to begin one after the other, each list with its first."""
    return [path.read_text().split() for path in job_dir.glob(contract.successors_file("*"))]


def _after(job_dir: Path, job_id: str) -> list[str]:
    """Return the jobs that wait for this one, in the order in which they begin."""
    for ids in _lists(job_dir):
        if job_id in ids:
            return ids[ids.index(job_id) + 1 :]
    return []


def dismiss(job_dir: Path, plan: Plan) -> None:
    """Cancel the jobs that wait, as nothing follows; those that remain begin, and end at once."""
    ids = sorted({job_id for ids in _lists(job_dir) for job_id in ids[1:]})
    if ids:
        batch_system(plan).cancel(ids, waiting=True)
