"""Users' programs: a framework's train.sh, made when the job was submitted, or a command."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan, Recipe
from dlctl.contract.ground.safe_text import without_prefix
from dlctl.contract.launchers import GPU_VARIABLES, Ranks
from dlctl.contract.programs.commands import warnings_of
from dlctl.contract.programs.options import as_options
from learner.errors import EXIT_HALTED, Mistake
from learner.frameworks.base import FrameworkRunner, Traits
from learner.job.environment import PROGRESS_FILE, service_variables

PRELUDE = f"trap 'exit {EXIT_HALTED}' USR2\n"
"""With this, the shell survives the signal, lets the running program save, and starts no other."""
_ANSWER = "dlctl-lacks"
_CHECK = f"""
import os
from importlib.util import find_spec
lacks = []
for name in os.environ["DLCTL_MODULES"].split():
    try:
        if find_spec(name) is None:
            raise ImportError
    except (ImportError, ValueError):
        lacks.append(name)
print("{_ANSWER}", *lacks)
"""
"""Runs in the learners' own Python, which may be as old as 3.4."""
_CHECK_S = 120.0


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
        """Return what seems wrong with the command, such as learners that train alone."""
        framework, code = plan.framework, job_dir / contract.CODE
        command = framework.command or f"python {shlex.quote(str(framework.job))}"
        return "; ".join(warnings_of(command, plan.resources.learners, code))

    def visible_gpus(self) -> int:
        """Return the number of devices that the environment or /dev names."""
        for name in GPU_VARIABLES:
            if os.environ.get(name):
                return len(os.environ[name].split(","))
        return len(list(Path("/dev").glob("nvidia[0-9]*")))


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
        start = f"trap 'exit {EXIT_HALTED}' {self._recipe.signal}\n. {script}"
        return [*shell, "-c", f"export DLCTL_AGAIN={shlex.quote(_again(start))}\n{start}"]

    def adapt(self, env: dict[str, str], plan: Plan) -> None:
        """Name the folder of the learners' own Python, and the options that a trial has."""
        super().adapt(env, plan)
        given = plan.framework.arguments
        if searched := {name: given.get(name) for name in self._recipe.searched}:
            env["DLCTL_OPTIONS"] = as_options(searched)
        own = plan.learner_environment
        if own is not None and own.python:
            env["DLCTL_PYTHON_FOLDER"] = str(Path(own.python).parent)

    def _ask_environment(self, plan: Plan, job_dir: Path) -> tuple[list[str], list[str]]:
        """Return the modules that the learners' own Python lacks, or why it can't be asked."""
        env = dict(os.environ)
        self.adapt(env, plan)
        env.update(service_variables(job_dir, 1, Ranks(0, 1, 0, 1, 0)))
        env[PROGRESS_FILE] = str(job_dir / "progress.json")
        env["DLCTL_CHECK"], env["DLCTL_MODULES"] = _CHECK, " ".join(self._recipe.modules)
        env["DLCTL_AGAIN"] = _again(self._recipe.script)
        shell = shutil.which("bash") or "/bin/sh"
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run([shell, "-c", self._recipe.script], env=env, stdout=output,
                                      stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      cwd=self.folder(plan, job_dir), timeout=_CHECK_S)  # fmt: skip
                code: int | str = done.returncode
            except subprocess.TimeoutExpired:
                code = f"no answer within {_CHECK_S} s"
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
        answers = [line for line in lines if line.startswith(_ANSWER)]
        if answers:
            return without_prefix(answers[-1], _ANSWER).split(), []
        why = lines[-1].strip() if lines else f"exit code {code}"
        name = plan.learner_environment.name if plan.learner_environment else ""
        return [], [
            f"The environment {name!r} can't be used on {socket.gethostname()}: {why!r}.\n"
            f"Correct environments.{name} in the site file of {plan.site}."
        ]

    def problems(self, plan: Plan, job_dir: Path) -> list[str]:  # noqa: ARG002
        """Return the missing modules, or a file that is not there."""
        found: list[str] = []
        if plan.learner_environment is None:
            lacks = [name for name in self._recipe.modules if not _is_there(name)]
        else:
            lacks, wrong = self._ask_environment(plan, job_dir)
            found += wrong
        if lacks:
            names, packages = ", ".join(lacks), self._recipe.install or " ".join(lacks)
            found.append(Mistake(
                f"{_python(plan)} lacks {names}, which {plan.framework.name} needs.\n"
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


def _again(text: str) -> str:
    """Return the shell text by which train.sh runs itself in a container or a namespace."""
    quoted = shlex.quote(text)
    return f"for s in bash sh; do command -v $s >/dev/null && exec $s -c {quoted}; done"


def _python(plan: Plan) -> str:
    own = plan.learner_environment
    return f"The environment {own.name!r}" if own else f"Python {sys.executable!r}"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent is missing, or broken
        return False


def users_python_path(python_path: str, runtime_dir: str) -> str:
    """Return the user's search path, with dlctl's packages after everything else."""
    runtime = os.path.realpath(runtime_dir)
    # An empty entry would mean the current folder.
    before = [p for p in python_path.split(":") if p and os.path.realpath(p) != runtime]
    return ":".join([*before, runtime_dir])
