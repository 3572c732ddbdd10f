"""The programs that can run as a learner: a user's command, or a framework's built-in loop.

Imports `learner.job` and the contract, and torch only to count GPUs. Each framework gives a command
line, an environment and the problems that the preflight reports. To add a framework with a built-in
loop, write its file, add it here, and describe it in `dlctl.contract.frameworks`.
"""

from __future__ import annotations

from dlctl.contract import Plan
from learner.errors import UserFault
from learner.frameworks.base import FrameworkRunner, Traits
from learner.frameworks.command import UserCommand
from learner.frameworks.pytorch import PyTorch

COMMAND: FrameworkRunner = UserCommand()
LOOPS: dict[str, FrameworkRunner] = {"pytorch": PyTorch(), "torch": PyTorch()}
"""The built-in loops, by the manifest's `framework.name`."""

__all__ = ["COMMAND", "LOOPS", "FrameworkRunner", "Traits", "framework_of"]


def framework_of(plan: Plan) -> FrameworkRunner:
    """Return the framework that runs as a learner of this plan.

    Raises:
        UserFault: the plan needs a built-in loop that this version lacks.
    """
    if plan.framework.command is not None:
        return COMMAND
    name = plan.framework.name
    if name.lower() not in LOOPS:
        raise UserFault(
            f"The framework {name!r} has no built-in loop in this version.",
            hint="Use framework.command, or submit with the dlctl that made this plan.",
        )
    return LOOPS[name.lower()]
