"""The learner that failed first is blamed, whatever the launcher or MPI then does to the other.

`tests/unit/learner/supervisor/test_who_failed_first.py` has all pairs; here some really happen.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from repository import REPOSITORY
from trainings import change_site, submit, verdict, wait_for_state, write_training

PROGRAM = Path(REPOSITORY, "tests/support/culprit_program.py").read_text()
ENDS = {
    "exception": ("user_error", "ValueError: no labels"),
    "import": ("user_error", "No module named 'not_there'"),
    "network": ("network", "Connection refused"),
    "network handles": ("network", "Connection refused"),
    "segv": ("unknown", "killed by signal 11"),
    "kill": ("unknown", "killed by signal 9"),
    "term": ("scheduler", "killed by signal 15"),
    "75": ("try_again", "exit code 75"),
    "78": ("user_error", "exit code 78"),
    "watchdog": ("unknown", "vanished with its watchdog"),
    "exception mpi": ("user_error", "ValueError: no labels"),
    "MPI_Abort mpi": ("user_error", ""),
    "3 mpi": ("user_error", "exit code 3"),
    "0 mpi": ("user_error", "ended with exit code 0 before the others were done"),
    "kill mpi": ("unknown", "killed by signal 9"),
}
TIMES = {"network": 3, "network handles": 2}
"""How often what was a race is tried."""
HANG = {("mpirun", "exception mpi")}
"""mpi4py calls MPI_Finalize after the exception, which waits for the others."""
MAY_STAY_UNKNOWN = ("3 mpi", "0 mpi", "kill mpi", "MPI_Abort mpi")
"""Slurm's PMIx may kill all watchdogs before one could note how its program ended."""


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_the_learner_that_failed_first_is_blamed(dlctl, cluster_site, xdg, launcher):
    site = change_site(cluster_site, xdg.config, launcher={"kind": launcher})
    rows = [how for how in ENDS if (launcher, how) not in HANG]
    sent = []
    for how in rows:
        for number in range(TIMES.get(how, 1)):
            folder = write_training(
                dlctl.cwd / f"{how}-{number}".replace(" ", "-"),
                {"command": f"exec {site.python} program.py {how}"}, {"program.py": PROGRAM},
                learners=2, nodes=2, retries=0, memory="400MiB",
            )  # fmt: skip
            sent.append((how, submit(dlctl, site, folder)))
    wrong, known = [], 0
    for how, training_id in sent:
        wait_for_state(dlctl, training_id, "FAILED", timeout_s=400)
        found = verdict(site.job_dir(training_id), 1)
        assert found is not None and found.evidence is not None
        kind, words = ENDS[how]
        if launcher == "srun" and how in MAY_STAY_UNKNOWN and found.kind == "scheduler":
            assert found.reason.startswith("Slurm ended the learners' step"), found.reason
            continue
        known += how in MAY_STAY_UNKNOWN
        if (found.kind, found.evidence.rank) != (kind, 1) or words not in found.reason:
            wrong.append((how, found.kind, found.evidence.rank, found.reason))
    assert not wrong
    assert known
