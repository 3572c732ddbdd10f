"""Lightning: a callback that saves at a halt, after the step in which any learner was asked to."""

from __future__ import annotations

import re
import zipfile
from importlib import import_module
from typing import Any

from learner.adapters.halt import Halt
from learner.adapters.saved import checkpoint_dir

_STEP = re.compile(r"step=(\d+)(-v\d+)?\.ckpt")


def newest_checkpoint() -> tuple[str | None, int]:
    """Return what `trainer.fit(…, ckpt_path=…)` takes, and how many steps were taken before.

    Lightning writes a file elsewhere and moves it, which between two file systems is a copy: one
    that was cut off by a kill is passed over. A second file of a step has `-v1` in its name.
    """
    found = [(int(m[1]), path) for path in checkpoint_dir().iterdir()
             if (m := _STEP.fullmatch(path.name))]  # fmt: skip
    for step, path in sorted(found, reverse=True):
        if zipfile.is_zipfile(path):
            return str(path), step
    return None, 0


def save_at_halt() -> Any:
    """Return a callback for the Trainer, beside a `ModelCheckpoint(…, "{step}")`.

    Its checkpoint has the name that ModelCheckpoint's would have.
    """
    base: Any = import_module("lightning.pytorch.callbacks").Callback
    halt = Halt()

    class SaveAtHalt(base):  # type: ignore[misc]
        """Saves after the step in which any learner got the signal, and ends all of them there."""

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            import torch

            halts = trainer.strategy.reduce(
                torch.tensor(float(halt.asked), device=trainer.strategy.root_device),
                reduce_op="sum",
            )
            if float(halts) > 0:
                trainer.save_checkpoint(checkpoint_dir() / f"step={trainer.global_step}.ckpt")
                if trainer.is_global_zero:
                    print(f"halted after step {trainer.global_step}", flush=True)
                trainer.strategy.barrier()
                halt.leave()

    return SaveAtHalt()
