"""tf_keras: BackupAndRestore that saves at a halt, too, and says where the data has to go on."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from learner.adapters.halt import Halt
from learner.adapters.saved import checkpoint_dir

_VALUE = ".ATTRIBUTES/VARIABLE_VALUE"


def backup_and_restore(save_freq: int) -> Any:
    """Return the callback for `fit`: saves every `save_freq` steps and at a halt.

    All workers agree on the step after which they save and leave.
    """
    tf: Any = import_module("tensorflow")
    base: Any = import_module("tf_keras").callbacks.BackupAndRestore
    halt = Halt()

    @tf.function  # type: ignore[untyped-decorator]
    def total(strategy: Any, flag: Any) -> Any:
        here = strategy.run(lambda value: value + 0.0, (flag,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, here, axis=None)

    class BackupAtHalt(base):  # type: ignore[misc]
        """Saves after the step in which any worker got the signal, and ends all of them there."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs)
            halts = total(self.model.distribute_strategy, tf.constant(float(halt.asked)))
            if float(halts) > 0:
                self._backup(self._current_epoch, batch)
                print(f"halted after batch {batch} of epoch {self._current_epoch}", flush=True)
                halt.leave()

    return BackupAtHalt(str(checkpoint_dir() / "backup"), save_freq, delete_checkpoint=False)


def steps_before(steps_per_epoch: int) -> int:
    """Return how many steps were taken before: the data of `fit` has to begin with the next.

    Give `fit` a dataset without an end that begins there, and `steps_per_epoch`.
    """
    tf: Any = import_module("tensorflow")
    for backup in (checkpoint_dir() / "backup", checkpoint_dir() / "backup/chief"):
        if found := tf.train.latest_checkpoint(str(backup)):
            reader = tf.train.load_checkpoint(found)
            epoch, batch = (
                int(reader.get_tensor(f"ckpt_saved_{name}/{_VALUE}")) for name in ("epoch", "batch")
            )
            return epoch * steps_per_epoch + batch + 1
    return 0
