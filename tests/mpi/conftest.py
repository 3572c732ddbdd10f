"""Job directories with a plan, and learners started on them without the supervisor."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from mpi_programs import REPOSITORY, TIME_LIMIT_S, mpi_command, mpi_environment
from server_job import loop_plan
from zygote import Zygote

from dlctl import contract

SET_RANK = """
import os, sys
os.environ["RANK"] = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
os.environ["LOCAL_RANK"] = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")
os.environ["WORLD_SIZE"] = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
if "DLCTL_PROGRESS_FILE" in os.environ:
    os.environ["DLCTL_PROGRESS_FILE"] += "-" + os.environ["RANK"]
from learner.train import main
sys.exit(main())
"""
"""What learner.agent does for a learner, in short."""


@dataclass
class Job:
    """A job directory."""

    directory: Path
    plan: contract.Plan
    zygote: Zygote

    def train(self, attempt=1, **env):
        """Run the built-in loop in as many ranks as the plan has learners."""
        plan = self.directory / contract.plan_file(attempt)
        (self.directory / contract.attempt_dir(attempt)).mkdir(parents=True, exist_ok=True)
        contract.write_whole(plan, contract.to_json(self.plan))
        link = self.directory / contract.RESULTS  # the supervisor makes it
        link.unlink(missing_ok=True)
        link.symlink_to(contract.results_dir(attempt))
        learners = self.plan.resources.learners
        if learners == 1:
            alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            loop = ["-m", "learner.train", self.directory, str(attempt)]
            return self.zygote.run(*loop, env=alone | env, timeout_s=TIME_LIMIT_S)
        program = self.directory.parent / "rank.py"
        program.write_text(SET_RANK)
        loop = [str(self.directory), str(attempt)]
        return subprocess.run(
            [*mpi_command(learners, self.zygote.rank()), str(program), *loop],
            env=mpi_environment(**env),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )

    def weights(self):
        """Return results/model.pt."""
        import torch

        loaded = torch.load(self.directory / "results" / "model.pt", weights_only=True)
        return dict(loaded)

    def change(self, **fields):
        """Rewrite the plan."""
        self.plan = replace(self.plan, **fields)
        contract.write_whole(self.directory / contract.PLAN, contract.to_json(self.plan))


@pytest.fixture
def make_job(tmp_path, zygote):
    """Return a function that makes a job directory from the text of a train.py."""
    made = []

    def make(program, learners=1, arguments=None, **fields):
        directory = tmp_path / f"job {len(made)}"
        made.append(directory)
        (directory / contract.CODE).mkdir(parents=True)
        (directory / contract.CODE / "train.py").write_text(program)
        launch = contract.Launch("direct" if learners == 1 else "mpirun", [])
        job = Job(directory, loop_plan(directory, learners, launch, 10), zygote)
        framework = replace(job.plan.framework, arguments=arguments or {})
        job.change(**{"framework": framework, **fields})
        return job

    return make


@pytest.fixture(scope="session")
def run_ranks(zygote):
    """Return a function that runs a script in so many ranks.

    Forks of the zygote, unless the interpreter of the tests is to start them (`fresh`).
    """

    def run(ranks, script, *arguments, fresh=False, **env):
        python = (sys.executable,) if fresh else zygote.rank()
        return subprocess.run(
            [*mpi_command(ranks, python), str(script), *arguments],
            env=mpi_environment(**env),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )

    return run
