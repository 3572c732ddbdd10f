"""What a framework has to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dlctl.contract import Plan


@dataclass(frozen=True)
class Traits:
    """What the watchdog has to know of the program that it runs."""

    in_shell: bool
    """A shell of ours is around it: that tells of a signal as exit code 128 + number, and is not
    what has to save."""
    is_our_loop: bool
    """It holds a halt back until it can take it, ends with EXIT_HALTED once it has saved, and says
    when the training came to its end (`learner.job.metrics.finished_file`)."""


class Framework(Protocol):
    """How a learner is started, and what it needs on its node."""

    traits: Traits

    def argv(self, plan: Plan, job_dir: Path, attempt: int) -> list[str]:
        """Return the learner's command line."""

    def folder(self, plan: Plan, job_dir: Path) -> Path:
        """Return the folder that the learner is started in."""

    def adapt(self, env: dict[str, str], plan: Plan) -> None:
        """Change the environment of the learner's parent into the learner's, in place."""

    def problems(self, plan: Plan, job_dir: Path) -> list[str]:
        """Return what would end the learner later: what was seen, a line break, what to do."""

    def visible_gpus(self) -> int:
        """Return how many GPUs this process's learner would see."""
