"""The programs that can run as a learner: a framework's train.sh, or the built-in loop.

Imports `learner.job` and the contract, and torch only to count GPUs. Each gives a command line, an
environment and the problems that the preflight reports. The frameworks themselves are folders
(`templates/frameworks/`), which the plan holds as a `Recipe`: a node knows none by name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dlctl.contract import Plan
from learner.errors import UserFault
from learner.frameworks.base import FrameworkRunner, Traits
from learner.frameworks.pytorch import PyTorch, loop_module
from learner.frameworks.script import TrainScript, UserCommand

COMMAND: FrameworkRunner = UserCommand()
"""A command as it is, of a plan without a recipe."""
LOOP: FrameworkRunner = PyTorch()

__all__ = [
    "COMMAND", "LOOP", "FrameworkRunner", "Traits", "framework_of", "loop_module", "prepare",
]  # fmt: skip


def framework_of(plan: Plan) -> FrameworkRunner:
    """Return the program that runs as a learner of this plan, on this node.

    Raises:
        UserFault: the plan has no train.sh.
    """
    framework, recipe = plan.framework, plan.framework.recipe
    if recipe is None:
        return LOOP if framework.command is None else COMMAND
    if recipe.loop and (recipe.loop_unless is None or not shutil.which(recipe.loop_unless)):
        return LOOP
    if not recipe.script:
        raise UserFault(
            f"The plan of {framework.name!r} has no train.sh.",
            hint="Submit again with the dlctl that made this plan.",
        )
    return TrainScript(recipe)


def prepare(plan: Plan, job_dir: Path, attempt: int) -> None:
    """Write the files that the learners of an attempt run, once, before they start."""
    recipe = plan.framework.recipe
    if recipe is not None and recipe.script:
        TrainScript(recipe).prepare(plan, job_dir, attempt)
