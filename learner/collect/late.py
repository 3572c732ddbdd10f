"""Read what an attempt wrote last, if its collector could not: `python -m learner.collect.late`.

The node of a lost attempt takes its collector with it. The supervisor of the next attempt has the
rest read before its learners start, so that no line of theirs is in a file that attempts share.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

from dlctl import contract
from dlctl.contract import ContractError
from dlctl.contract.metrics import Source
from learner.collect.state import Complaints, is_finished
from learner.job.context import read_plan

READ_S = 4.0
"""What is not read by then, of files that attempts share, is read as lines of the next attempt."""
_LONGEST_S = 6.0


def have_read(job_dir: Path, attempt: int) -> None:
    """Have the rest of an attempt read, in a process of its own; wait for its end."""
    with contextlib.suppress(OSError, ContractError, subprocess.SubprocessError):
        if _unfinished(job_dir, attempt):
            argv = [sys.executable, "-m", "learner.collect.late", str(job_dir), str(attempt)]
            subprocess.run(
                argv, timeout=_LONGEST_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip


def read_the_rest(job_dir: Path, attempt: int) -> None:
    """Read the rest of each learner whose collector did not come to the end."""
    ranks = _unfinished(job_dir, attempt)
    if not ranks:
        return
    from learner.collect.asked import make_parsing

    plan, until = read_plan(job_dir, attempt), time.monotonic() + READ_S
    for rank in ranks:
        complaints = Complaints(job_dir / contract.learner_log(attempt, rank))
        with contextlib.suppress(ValueError):  # of an expression that the collector named, too
            parsing = make_parsing(plan, job_dir, attempt, rank, complaints.say)
            if parsing is not None:
                parsing.finish(until)


def _unfinished(job_dir: Path, attempt: int) -> list[int]:
    plan = read_plan(job_dir, attempt)
    if not plan.evaluation_metrics:
        return []
    return [
        rank for rank in range(plan.resources.learners)
        if not is_finished(
            job_dir / contract.collector_state(rank),
            job_dir / contract.metrics_file(attempt, rank, Source.LOG), attempt,
        )
    ]  # fmt: skip


if __name__ == "__main__":
    read_the_rest(Path(sys.argv[1]), int(sys.argv[2]))
