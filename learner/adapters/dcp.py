"""torch.distributed.checkpoint: each learner writes its part of a sharded state, all at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from learner.adapters.halt import Halt, any_asked, process_group
from learner.adapters.saved import checkpoint_dir, newest
from learner.job.context import ATTEMPT_VARIABLE
from learner.system.files import put_in_place

PATTERN = "sharded-*"


class Checkpoints:
    """Saves a state as `sharded-N`, which is whole or not there, and reads the newest one.

    Args:
        keep: How many checkpoints stay.
    """

    def __init__(self, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep {keep}: at least one checkpoint has to stay")
        self._folder, self._keep, self._halt = checkpoint_dir(), keep, Halt()

    def restore(self, state: dict[str, Any]) -> int:
        """Read the newest checkpoint into the state; return its step, 0 if there is none.

        Another number of learners may read it than wrote it.
        """
        checkpoint = import_module("torch.distributed.checkpoint")

        found = newest(PATTERN, self._folder)
        if found is None:
            return 0
        checkpoint.load(state, checkpoint_id=str(found))
        return int(found.name.rpartition("-")[2])

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save the state; every learner calls this after the same step."""
        checkpoint = import_module("torch.distributed.checkpoint")

        attempt = os.environ.get(ATTEMPT_VARIABLE, "1")  # a late process has a folder of its own
        part = self._folder / f".sharded-{step}.part-{attempt}"
        checkpoint.save(state, checkpoint_id=str(part))
        group = process_group()
        if group is None or group.get_rank() == 0:
            aside = part.with_name(f"{part.name}.old")
            put_in_place(part, self._folder / f"sharded-{step}", aside)
            shutil.rmtree(aside, ignore_errors=True)
            for left in self._folder.glob(".sharded-*.part-*"):  # by attempts that were killed
                if int(left.name.partition(".part-")[2].removesuffix(".old")) <= int(attempt):
                    shutil.rmtree(left, ignore_errors=True)
            for old in sorted(self._folder.glob(PATTERN), key=_step)[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
        if group is not None:
            group.barrier()

    def leave_if_asked(self, step: int, state: Callable[[], dict[str, Any]]) -> None:
        """End the process after saving, if any learner was asked to; call this after each step.

        Args:
            step: The steps that were taken.
            state: Returns what `save` saves; called only then.
        """
        if any_asked(self._halt):
            self.save(step, state())
            group = process_group()
            if group is None or group.get_rank() == 0:
                print(f"halted after step {step}", flush=True)
            self._halt.leave()


def _step(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
