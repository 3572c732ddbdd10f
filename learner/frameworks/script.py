"""A framework's train.sh: what its folder and the manifest became when the job was submitted."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import signal
import sys
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan, Recipe
from learner.errors import EXIT_HALTED, Mistake
from learner.frameworks.base import Traits
from learner.frameworks.command import UserCommand


class TrainScript(UserCommand):
    """Runs train.sh, once for each learner, in the code folder: with bash, if there is one."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        number = signal.Signals[f"SIG{recipe.signal}"]
        self.traits = Traits(in_shell=True, is_our_loop=False, halt_signal=number)

    def prepare(self, plan: Plan, job_dir: Path, attempt: int) -> None:
        """Write train.sh, and the arguments as JSON."""
        script = job_dir / contract.train_script(attempt)
        contract.write_whole(script, self._recipe.script, 0o777)
        arguments = json.dumps(plan.framework.arguments, indent=2) + "\n"
        contract.write_whole(job_dir / contract.arguments_file(attempt), arguments)

    def argv(self, plan: Plan, job_dir: Path, attempt: int) -> list[str]:  # noqa: ARG002
        """Return the shell with the script.

        The shell survives the signal of a halt, lets the running program save, starts no other,
        and says then that it was halted.
        """
        script = shlex.quote(str(job_dir / contract.train_script(attempt)))
        # Debian's bash reads ~/.bashrc where it takes its parent for sshd.
        shell = [bash, "--norc"] if (bash := shutil.which("bash")) else ["/bin/sh"]
        trap = f"trap 'exit {EXIT_HALTED}' {self._recipe.signal}"
        return [*shell, "-c", f"{trap}\n. {script}"]

    def problems(self, plan: Plan, job_dir: Path) -> list[str]:  # noqa: ARG002
        """Return the missing modules, or a file that is not there."""
        lacks = [name for name in self._recipe.modules if not _is_there(name)]
        found: list[str] = []
        if lacks:
            names, packages = ", ".join(lacks), self._recipe.install or " ".join(lacks)
            found.append(Mistake(
                f"Python {sys.executable!r} lacks {names}, which {plan.framework.name} needs.\n"
                f"Add to the manifest: requirements: [{', '.join(packages.split())}]  "
                f"(or install them at the site {plan.site})"
            ))  # fmt: skip
        job = plan.framework.job
        if job is not None and not (job_dir / contract.CODE / job).is_file():
            found.append(Mistake(
                f"framework.job {job!r} is not in the code folder.\n"
                "Name a file of the submitted folder (.gitignore and .dlctlignore leave out)."
            ))  # fmt: skip
        return found


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is missing, or broken
        return False
