"""`framework.command`: a user's own program, in any framework, as shell text."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan
from dlctl.contract.programs.lone_program import warn_if_alone
from learner.errors import EXIT_HALTED
from learner.frameworks.base import FrameworkRunner, Traits

PRELUDE = f"trap 'exit {EXIT_HALTED}' USR2\n"
"""With this, the shell survives the signal, lets the running program save, and starts no other."""
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


class UserCommand(FrameworkRunner):
    """Runs the manifest's shell text, once for each learner, in the code folder."""

    traits = Traits(in_shell=True, is_our_loop=False)

    def argv(self, plan: Plan, job_dir: Path, attempt: int) -> list[str]:  # noqa: ARG002
        """Return the shell with the text."""
        return ["/bin/sh", "-c", f"{PRELUDE}{plan.framework.command}"]

    def folder(self, plan: Plan, job_dir: Path) -> Path:  # noqa: ARG002
        """Return the code folder."""
        return job_dir / contract.CODE

    def adapt(self, env: dict[str, str], plan: Plan) -> None:
        """Put the runtime last on the path: a user's file shadows dlctl's, never vice versa."""
        env["PYTHONPATH"] = users_python_path(env.get("PYTHONPATH", ""), plan.runtime_dir)
        env.pop("PYTHONSAFEPATH", None)

    def warning(self, plan: Plan, job_dir: Path) -> str:
        """Return why the learners seem to train alone, if they do."""
        framework, learners = plan.framework, plan.resources.learners
        command = framework.command or f"python {shlex.quote(str(framework.job))}"
        return warn_if_alone(command, learners, job_dir / contract.CODE)

    def visible_gpus(self) -> int:
        """Return the number of devices that the environment or /dev names."""
        for name in _GPU_VARIABLES:
            if os.environ.get(name):
                return len(os.environ[name].split(","))
        return len(list(Path("/dev").glob("nvidia[0-9]*")))


def users_python_path(python_path: str, runtime_dir: str) -> str:
    """Return the user's search path, with dlctl's packages after everything else."""
    runtime = os.path.realpath(runtime_dir)
    # An empty entry would mean the current folder.
    before = [p for p in python_path.split(":") if p and os.path.realpath(p) != runtime]
    return ":".join([*before, runtime_dir])
