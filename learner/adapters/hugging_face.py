"""Hugging Face's Trainer: a callback that saves at a halt and says which checkpoints are whole."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from learner.adapters.halt import Halt, any_asked, process_group
from learner.adapters.saved import is_marked, mark_complete, newest

PATTERN = "checkpoint-*"


def newest_checkpoint() -> str | None:
    """Return what `trainer.train(resume_from_checkpoint=…)` takes: only what has the mark."""
    found = newest(PATTERN)
    return str(found) if found is not None and is_marked(found) else None


def save_at_halt() -> Any:
    """Return a callback: `Trainer(…, callbacks=[halt])`, and `halt.leave_if_halted()` after train.

    It saves and stops after the step in which any learner was asked to. Once all learners have
    written their part of a checkpoint, learner 0 marks it; Trainer writes checkpoints in place, so
    a killed one is known by the missing mark. `save_total_limit` must be 2 or more.
    """
    base: Any = import_module("transformers").TrainerCallback
    halt = Halt()

    class SaveAtHalt(base):  # type: ignore[misc]
        """Saves and stops after the step in which any learner got the signal."""

        halted = False

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
            if any_asked(halt):
                if state.is_world_process_zero:
                    print(f"halted after step {state.global_step}", flush=True)
                control.should_save = control.should_training_stop = self.halted = True
            return control

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
            if (group := process_group()) is not None:
                group.barrier()
            if state.is_world_process_zero:
                mark_complete(Path(args.output_dir, f"checkpoint-{state.global_step}"))

        def leave_if_halted(self) -> None:
            if self.halted:
                halt.leave()

    return SaveAtHalt()
