"""The interface of a framework."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract import Plan


@dataclass(frozen=True)
class Traits:
    """The watchdog's knowledge of the program that it runs."""

    in_shell: bool
    """Whether dlctl runs the program in a shell, which reports a signal as exit code 128 + number
    and has nothing to save."""
    is_our_loop: bool
    """Whether the program is a built-in loop: it blocks a halt until it can handle it, exits with
    EXIT_HALTED after saving, and marks the end (`learner.job.metrics.finished_file`)."""
    halt_signal: int = signal.SIGUSR2
    """The signal that makes the program save and end."""


class FrameworkRunner(ABC):
    """The start of a learner, and its needs on its node."""

    traits: Traits

    @abstractmethod
    def argv(self, plan: Plan, job_dir: Path, attempt: int) -> list[str]:
        """Return the learner's command line."""

    @abstractmethod
    def folder(self, plan: Plan, job_dir: Path) -> Path:
        """Return the folder in which the learner starts."""

    @abstractmethod
    def visible_gpus(self) -> int:
        """Return how many GPUs this process's learner would see."""

    def adapt(self, env: dict[str, str], plan: Plan) -> None:  # noqa: B027
        """Turn the environment of the learner's parent into the learner's, in place."""

    def problems(self, plan: Plan, job_dir: Path) -> list[str]:  # noqa: ARG002
        """Return problems that would end the learner: what was seen, a line break, what to do."""
        return []

    def warning(self, plan: Plan, job_dir: Path) -> str:  # noqa: ARG002
        """Return a likely mistake that does not prevent training, in one sentence, or ""."""
        return ""
