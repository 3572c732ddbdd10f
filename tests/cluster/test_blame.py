"""The learner that failed first is blamed, whatever the launcher or MPI then does to the others.

`tests/unit/learner/supervisor/test_who_failed_first.py` has all pairs; here the ends really happen:
each way to fail, by the first learner, one beside another and one on the other node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from repository import REPOSITORY
from trainings import change_site, submit, verdict, wait_for_state, write_training

from dlctl import contract

PROGRAM = Path(REPOSITORY, "tests/support/culprit_program.py").read_text()
ENDS = {
    "exception": ("user_error", "ValueError: no labels"),
    "import": ("user_error", "No module named 'not_there'"),
    "network": ("network", "Connection refused"),
    "network handles": ("network", "Connection refused"),
    "segv": ("unknown", "killed by signal 11"),
    "abort": ("unknown", "killed by signal 6"),
    "kill": ("unknown", "killed by signal 9"),
    "term": ("scheduler", "killed by signal 15"),
    "3": ("user_error", "exit code 3"),
    "75": ("try_again", "exit code 75"),
    "78": ("user_error", "exit code 78"),
    "watchdog": ("unknown", "vanished with its watchdog"),
    "MPI_Abort mpi": ("user_error", ": ready"),
    "segv mpi": ("unknown", "killed by signal 11"),
    "3 mpi": ("user_error", "exit code 3"),
    "0 mpi": ("user_error", "ended with exit code 0 before the others were done"),
    "kill mpi": ("unknown", "killed by signal 9"),
}
"""How a learner fails, and what has to be said of it. With `mpi` the others wait for it in MPI."""
TIMES = {"network": 3, "network handles": 2}
"""How often what was a race is tried."""
LEARNERS = 4
WHO = (0, 1, 3)
"""The first, one beside it, and the last, which is on the other node of two."""


class Cell(NamedTuple):
    """One cell of the table."""

    how: str
    who: int


def one_in_a_row() -> list[Cell]:
    """Return each way to fail once, by the learners in turn."""
    rows = [how for how in ENDS for _ in range(TIMES.get(how, 1))]
    return [Cell(how, WHO[number % len(WHO)]) for number, how in enumerate(rows)]


ALL = [Cell(how, who) for how in ENDS for who in WHO]


def wrong(dlctl: Any, site: Any, cells: Iterable[Cell], start: str = "", **many: int) -> list[Any]:
    """Run the cells' trainings; return of which the wrong is said, and what."""
    sent = []
    for number, cell in enumerate(cells):
        how, *more = cell.how.split()
        words = " ".join([start or site.python.as_posix(), "program.py", how, str(cell.who), *more])
        folder = write_training(
            dlctl.cwd / str(number), {"command": f"exec {words}"}, {"program.py": PROGRAM},
            retries=0, **{"memory": "300MiB", **many},
        )  # fmt: skip
        sent.append((cell, submit(dlctl, site, folder)))
    found = []
    for cell, training_id in sent:
        wait_for_state(dlctl, training_id, "FAILED", timeout_s=1500)
        is_said = verdict(site.job_dir(training_id), 1)
        assert is_said is not None and is_said.evidence is not None
        kind, words = ENDS[cell.how]
        name = f"rank {cell.who} of its torchrun" if start else f"Learner {cell.who} on "
        right = is_said.kind == kind and name in is_said.reason and words in is_said.reason
        print("right" if right else "WRONG", *cell, "|", is_said.kind, "|", is_said.reason)
        found += [] if right else [(*cell, is_said.kind, is_said.reason)]
    return found


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_the_learner_that_failed_first_is_blamed(dlctl, cluster_site, xdg, launcher):
    site = change_site(cluster_site, xdg.config, launcher={"kind": launcher})
    assert not wrong(dlctl, site, one_in_a_row(), learners=LEARNERS, nodes=2)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_each_learner_is_blamed_for_each_end(dlctl, cluster_site, xdg, launcher):
    site = change_site(cluster_site, xdg.config, launcher={"kind": launcher})
    assert not wrong(dlctl, site, ALL, learners=LEARNERS, nodes=2)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_each_learner_is_blamed_on_this_machine(dlctl, local_site):
    assert not wrong(dlctl, local_site, ALL, learners=LEARNERS)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_torchrun_names_its_process(dlctl, local_site):
    start = f"{Path(sys.executable).with_name('torchrun')} --standalone --nproc-per-node {LEARNERS}"
    own = [cell for cell in ALL if not cell.how.endswith("mpi") and cell.how != "watchdog"]
    assert not wrong(dlctl, local_site, own, start, memory="1GiB")


def host_of(job_dir: Path, rank: int) -> str:
    found = contract.read_record(
        contract.Status, job_dir / contract.status_file(1, "learner", rank)
    )
    return found.host if found else ""


def test_the_node_is_named_whose_learner_used_too_much_memory(dlctl, cluster_site):
    """Slurm counts the memory of a node's part of a step, and kills the whole step."""
    folder = write_training(
        dlctl.cwd, {"command": f"exec {cluster_site.python} program.py memory 1"},
        {"program.py": PROGRAM}, learners=LEARNERS, nodes=2, memory="300MiB", retries=0,
    )  # fmt: skip
    training_id = submit(dlctl, cluster_site, folder)
    wait_for_state(dlctl, training_id, "FAILED", timeout_s=280)
    found = verdict(job_dir := cluster_site.job_dir(training_id), 1)
    assert found is not None and found.evidence is not None
    hosts = [host_of(job_dir, n) for n in (1, 3)]
    assert (found.kind, found.evidence.host) == ("out_of_memory", hosts[0]) != ("", hosts[1])
    assert "dlctl resume" in found.hint and "--memory 600MiB" in found.hint


@pytest.mark.long
def test_an_exception_that_hangs_in_mpi_is_a_failure_and_followed_by_no_attempt(
    dlctl, cluster_site, xdg
):
    """The time limit ends it: MPI_Finalize of mpi4py waits for learners that wait for it."""
    site = change_site(cluster_site, xdg.config, launcher={"kind": "mpirun"})
    command = f"exec {site.python} program.py exception 1 mpi"
    folder = write_training(dlctl.cwd / "job", {"command": command}, {"program.py": PROGRAM},
                            learners=LEARNERS, nodes=2, memory="300MiB", time="2m")  # fmt: skip
    training_id = submit(dlctl, site, folder)
    wait_for_state(dlctl, training_id, "FAILED", timeout_s=280)
    found = verdict(site.job_dir(training_id), 1)
    assert found is not None and found.kind == "user_error"
    assert "hung in MPI until it was ended: program.py:22: ValueError: no labels" in found.reason
    assert "python -m mpi4py" in found.hint
