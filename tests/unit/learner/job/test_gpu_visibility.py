"""Which GPUs a restarted learner uses if its step sees those of other learners, too."""

from dataclasses import replace

import pytest
from node_job import on_nodes
from scheduler_plan import make_plan

from dlctl.contract import ParameterServer
from learner.job.environment import SHARED_VARIABLE, own_gpus, visible_devices
from learner.supervisor import steps

SHARED = {SHARED_VARIABLE: "1", "SLURM_STEP_GPUS": "1,2,5,7"}


@pytest.mark.parametrize(
    ("env", "before", "gpus", "local_rank", "expected"),
    [
        ({"SLURM_STEP_GPUS": "3"}, "1", 1, 0, "3"),  # a step of its own
        ({}, "", 1, 0, ""),
        ({SHARED_VARIABLE: "1"}, "", 1, 0, ""),
        (SHARED, "5", 1, 0, "5"),
        (SHARED, "7,1", 2, 0, "7,1"),
        (SHARED, "", 1, 2, "5"),  # its status is gone
        (SHARED, "9", 2, 1, "5,7"),
        (SHARED, "", 1, 6, "1,2,5,7"),
    ],
)
def test_a_learner_keeps_the_gpus_that_it_had(env, before, gpus, local_rank, expected):
    assert own_gpus(env, before, gpus, local_rank) == expected


def test_a_learner_sees_only_its_own_gpus():
    devices = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "ROCR_VISIBLE_DEVICES": "a,b"}
    assert visible_devices(SHARED | devices, "5") == {"CUDA_VISIBLE_DEVICES": "2"}
    assert visible_devices(SHARED | devices, "7,1") == {"CUDA_VISIBLE_DEVICES": "3,0"}
    assert visible_devices(SHARED | devices, "1,2,5,7") == {}
    assert visible_devices(SHARED | devices, "9") == {}
    assert visible_devices({"SLURM_STEP_GPUS": "1,2"} | devices, "1") == {}


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_step_that_overlaps_has_the_command_of_its_node(monkeypatch, tmp_path, gpus):
    plan = make_plan(job_dir=str(tmp_path))
    resources = replace(on_nodes(plan.resources, [2, 3]), learners=5, gpus_per_learner=gpus)
    argv = [["srun", f"--gres=gpu:{node}"] for node in range(2)]
    server = ParameterServer("downpour_sgd", [0, 1], rejoin_argv=argv)
    plan = replace(plan, resources=resources, parameter_server=server)
    made = []
    monkeypatch.setattr(steps, "Step", lambda *arguments: made.append(arguments))
    steps.learner_step(plan, "m", tmp_path, 1, 3, "n2", tmp_path / "log", overlaps=True)
    _, argv, _, _, variables = made[0]
    assert argv == ["srun", "--gres=gpu:1", "--nodelist=n2"]
    assert (SHARED_VARIABLE in variables) == bool(gpus)
