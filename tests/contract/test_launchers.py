"""Every launcher has the plan's command line, and its processes read their ranks."""

import itertools
from dataclasses import replace

import pytest
from scheduler_plan import make_plan

from dlctl.contract.launchers import LAUNCHERS, SITE_LAUNCHERS, LaunchError, LaunchRequest, Ranks
from dlctl.contract.launchers.srun import tasks_per_node

PER_NODE = [2, 1]
NODE = (0, 0, 1)
LOCAL = (0, 1, 0)
VARIABLES = {
    "srun": lambda rank: {
        "SLURM_PROCID": rank, "SLURM_NTASKS": 3, "SLURM_NODEID": NODE[rank],
        "SLURM_LOCALID": LOCAL[rank], "SLURM_STEP_TASKS_PER_NODE": "2,1",
    },
    "mpirun": lambda rank: {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 3,
        # As in a job script of Slurm: these mean the script, not the learner.
        "SLURM_PROCID": 0, "SLURM_NTASKS": 1,
    },
    "direct": lambda _rank: {},
}  # fmt: skip
"""The variables of a process of three on two nodes, by launcher. A new launcher needs a line."""


def resources(per_node=PER_NODE):
    """Return resources of learners that are placed in blocks of these sizes."""
    first = list(itertools.accumulate(per_node[:-1], initial=0))
    known = make_plan(job_dir="/x").resources
    return replace(known, learners=sum(per_node), nodes=len(per_node),
                   learners_per_node=per_node, first_ranks=first)  # fmt: skip


def environment(kind, rank):
    """Return what a process finds in its environment."""
    return {name: str(value) for name, value in VARIABLES[kind](rank).items()}


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_a_launchers_name_is_its_key_and_a_site_may_name_it_if_it_starts_several(kind):
    launcher = LAUNCHERS[kind]
    assert launcher.kind == kind
    assert (kind in SITE_LAUNCHERS) == launcher.for_sites == (kind != "direct")
    assert launcher.ended_grace_s > 0
    assert launcher.starts_mpi == bool(launcher.pmi_hint("here"))
    lack = launcher.lack(LaunchRequest(1, 1, 1), [], "", "here")
    assert lack is None or not lack.fatal, "one learner needs nothing from the site"


@pytest.mark.parametrize("kind", SITE_LAUNCHERS)
def test_a_command_holds_the_number_of_learners_and_the_sites_options(kind):
    request = LaunchRequest(3, 2, 4, mpi="pmix", extra=["--my-option"])
    argv = LAUNCHERS[kind].argv(request)
    assert argv[0] == kind and argv[-1] == "--my-option"
    assert any(word in ("3", "--ntasks=3") for word in argv)
    own = LAUNCHERS[kind].argv(replace(request, executable="/opt/it"))
    assert own == ["/opt/it", *argv[1:]]


@pytest.mark.parametrize("kind", SITE_LAUNCHERS)
def test_every_process_reads_its_own_rank(kind):
    found = [LAUNCHERS[kind].ranks(environment(kind, rank), resources()) for rank in range(3)]
    assert found == [Ranks(0, 3, 0, 2, 0), Ranks(1, 3, 1, 2, 0), Ranks(2, 3, 0, 1, 1)]


@pytest.mark.parametrize("kind", SITE_LAUNCHERS)
def test_a_process_that_no_launcher_started_learns_what_is_missing(kind):
    with pytest.raises(LaunchError, match=kind) as caught:
        LAUNCHERS[kind].ranks({}, resources())
    assert caught.value.hint


def test_a_pmi_that_slurm_does_not_know_is_fatal():
    lack = LAUNCHERS["srun"].lack(LaunchRequest(2, 1, 1, mpi="pmix"), ["pmi2", "none"], "", "here")
    assert lack is not None and lack.fatal
    assert (lack.what, lack.hint) == (
        "srun has no --mpi=pmix", "set launcher.mpi to one of pmi2, none",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tasks"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("", []), ("1,2(x2)", [1, 2, 2])]
)
def test_slurms_short_form_of_tasks_is_read(text, tasks):
    assert tasks_per_node(text) == tasks


def test_ranks_are_placed_in_blocks():
    placed = resources([2, 1, 3])
    assert [placed.node_of(rank) for rank in range(6)] == [
        (0, 0), (0, 0), (1, 2), (2, 3), (2, 3), (2, 3),
    ]  # fmt: skip
