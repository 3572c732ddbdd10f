"""Read what an attempt wrote last, if its collector could not: `python -m learner.collect.late`.

The node of a lost attempt takes its collector with it. The supervisor of the next attempt has the
rest read before its learners start, so that no line of theirs is in a file that attempts share.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from dlctl import contract
from dlctl.contract import ContractError
from learner.collect.complaints import Complaints
from learner.collect.state import is_finished
from learner.job.context import read_plan

LONGEST_S = 5.0
"""What is not read by then is read by the next attempt's collectors, as lines of that attempt."""


def have_read(job_dir: Path, attempt: int) -> None:
    """Have the rest of an attempt read, in a process of its own; wait for its end."""
    with contextlib.suppress(OSError, ContractError, subprocess.SubprocessError):
        if _unfinished(job_dir, attempt):
            argv = [sys.executable, "-m", "learner.collect.late", str(job_dir), str(attempt)]
            subprocess.run(
                argv, timeout=LONGEST_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip


def read_the_rest(job_dir: Path, attempt: int) -> None:
    """Read the rest of each learner whose collector did not come to the end."""
    ranks = _unfinished(job_dir, attempt)
    if not ranks:
        return
    from learner.collect.asked import make_parsing

    plan = read_plan(job_dir, attempt)
    for rank in ranks:
        complaints = Complaints(job_dir / contract.learner_log(attempt, rank))
        with contextlib.suppress(ValueError):  # of an expression that the collector named, too
            parsing = make_parsing(plan, job_dir, attempt, rank, complaints.say)
            if parsing is not None:
                parsing.finish()


def _unfinished(job_dir: Path, attempt: int) -> list[int]:
    plan = read_plan(job_dir, attempt)
    if not plan.evaluation_metrics:
        return []
    states = {n: job_dir / contract.collector_state(n) for n in range(plan.resources.learners)}
    return [rank for rank, path in states.items() if not is_finished(path, attempt)]


if __name__ == "__main__":
    read_the_rest(Path(sys.argv[1]), int(sys.argv[2]))
