"""Run the user's file of a job in its code directory, with the training's random seed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from dlctl import contract
from dlctl.contract.launchers import Ranks
from learner.checkpoint.rng import seed_all
from learner.frameworks import loop_module
from learner.job.environment import resolve_secrets, service_variables
from learner.model.user_model import Parts, build_parts, load_build


def run_build(plan: contract.Plan, code_dir: Path) -> Parts:
    """Return the result of `build`; the process stays in the code directory.

    Raises:
        UserFault: see learner.model.user_model.
    """
    path = code_dir / str(plan.framework.job)
    sys.dont_write_bytecode = True  # the code directory holds exactly what the user sent
    sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
    sys.path += [str(folder) for folder in dict.fromkeys((path.parent, code_dir))]
    os.chdir(code_dir)
    seed_all(plan.training.seed)  # a random split of the data must be the same on all learners
    module = loop_module(plan, code_dir)
    own = load_build(path) if module is None else lambda _: module.build(plan, code_dir)
    return build_parts(own, plan.framework.arguments)


def build_alone(plan: contract.Plan, job_dir: Path) -> Parts:
    """Run the user's file as the first learner would, without the other learners."""
    alone = service_variables(job_dir, 1, Ranks(0, 1, 0, 1, 0))
    alone["RESULT_DIR"] = str(job_dir / contract.RESULTS)
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(plan.env | resolve_secrets(plan, dict(os.environ)) | alone | ranks)
    torch.set_num_threads(max(1, plan.resources.threads_per_learner))
    return run_build(plan, job_dir / contract.CODE)
