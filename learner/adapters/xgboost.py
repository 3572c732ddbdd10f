"""XGBoost: a callback that saves the model after a round, and at a halt, each time whole."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dlctl.contract import whole_path
from learner.adapters.halt import Halt
from learner.adapters.saved import checkpoint_dir, newest

PATTERN = "round-*.ubj"


def newest_checkpoint() -> tuple[str | None, int]:
    """Return what `xgboost.train(…, xgb_model=…)` takes, and how many rounds it has."""
    found = newest(PATTERN)
    return (None, 0) if found is None else (str(found), int(found.stem.rpartition("-")[2]))


def save_at_halt(every: int = 1, keep: int = 2) -> Any:
    """Return a callback: `xgboost.train(…, callbacks=[halt])`, and `halt.leave_if_halted()`.

    Learner 0 writes. `TrainingCheckPoint` writes in place, and a file that it was killed over could
    not be read.
    """
    xgboost: Any = import_module("xgboost")
    numpy, collective = import_module("numpy"), import_module("xgboost.collective")
    folder, halt = checkpoint_dir(), Halt()

    class SaveAtHalt(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        """Saves and stops after the round in which any learner got the signal."""

        halted = False

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:  # noqa: ARG002
            flag = numpy.array([float(halt.asked)])
            self.halted = bool(collective.allreduce(flag, collective.Op.SUM)[0] > 0)
            # The model knows how many rounds it has, those of earlier attempts included.
            done = model.num_boosted_rounds()
            if collective.get_rank() == 0 and (self.halted or done % every == 0):
                with whole_path(folder / f"round-{done}.ubj", suffix=".ubj") as part:
                    model.save_model(part)
                    if self.halted:
                        print(f"halted after step {done}", flush=True)
                saved = sorted(folder.glob(PATTERN), key=lambda path: int(path.stem[6:]))
                for old in saved[:-keep]:
                    old.unlink()
            return self.halted

        def leave_if_halted(self) -> None:
            if self.halted:
                halt.leave()

    return SaveAtHalt()
