"""Which of the job's nodes the learners get if it has spare ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from learner.job.batch.slurm import exported
from learner.supervisor.preflight.spare_nodes import fit_hosts

HOSTS = ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("unfit", "exclude", "expected"),
    [
        ([], [], ["n1", "n2"]),
        (["n1"], [], ["n2", "n3"]),
        (["n2"], [], ["n1", "n3"]),
        ([], ["n2"], ["n1", "n3"]),  # an earlier attempt failed there
        (["n1", "n3"], [], ["n2"]),
    ],
)
def test_the_first_fit_nodes_are_taken(unfit, exclude, expected):
    plan = SimpleNamespace(
        resources=SimpleNamespace(nodes=2), batch=SimpleNamespace(exclude=exclude)
    )
    assert fit_hosts(plan, HOSTS, unfit) == expected


def test_the_variables_of_a_smaller_job_are_read_from_slurms_script():
    script = (
        'export SLURM_NODELIST="n[1,3]"\nexport SLURM_JOB_NUM_NODES=2\n'
        'export SLURM_JOB_CPUS_PER_NODE="1(x2)"\nunset SLURM_TASKS_PER_NODE\n'
    )
    assert exported(script) == {
        "SLURM_NODELIST": "n[1,3]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
    }  # fmt: skip
