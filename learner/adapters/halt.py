"""The halt of a training, as a program sees it: a signal asks for it, an exit code answers."""

from __future__ import annotations

import os
import signal
import sys
from types import ModuleType
from typing import NoReturn

from learner.errors import EXIT_HALTED


class Halt:
    """Notes the signal of a halt; the program saves at the end of its step, and leaves.

    Args:
        signal_name: What the framework's folder says. The main thread must make this object.
    """

    def __init__(self, signal_name: str = "USR2") -> None:
        self.asked = False
        signal.signal(signal.Signals[f"SIG{signal_name}"], self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def leave(self) -> NoReturn:
        """End the process, and say by the exit code that it has saved.

        Threads that wait for other learners are not waited for.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_HALTED)


def process_group() -> ModuleType | None:
    """Return torch.distributed, or None if this process has no group in it."""
    from torch import distributed

    return distributed if distributed.is_available() and distributed.is_initialized() else None


def any_asked(halt: Halt) -> bool:
    """Return whether any learner was asked, so that all of them stop after the same step.

    Every learner calls this after each step. It uses the process group of torch, if there is one.
    """
    import torch

    if (distributed := process_group()) is None:
        return halt.asked
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    flag = torch.tensor(float(halt.asked), device=device)
    distributed.all_reduce(flag)
    return bool(flag.item() > 0)
