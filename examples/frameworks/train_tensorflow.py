"""tf_keras with MultiWorkerMirroredStrategy: TF_CONFIG, which dlctl sets, names the workers.

BackupAndRestore saves every few steps and at each epoch's end, and continues by itself. At a halt
the learners end after the running epoch's next saved step.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras
from digits import load_digits

HALTED = 85


class EndAtHalt(keras.callbacks.Callback):
    """Ends the process once a signal came, after BackupAndRestore has saved this step."""

    def __init__(self):
        super().__init__()
        self.asked = False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_):
        self.asked = True

    def on_train_batch_end(self, batch, logs=None):
        if self.asked:
            print(f"halted in batch {batch}", flush=True)
            os._exit(HALTED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=5)
    options = parser.parse_args()
    rank, learners = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    together = tf.distribute.MultiWorkerMirroredStrategy
    strategy = together() if learners > 1 else tf.distribute.get_strategy()
    train, test = load_digits()
    keras.utils.set_random_seed(1)
    data = tf.data.Dataset.from_tensor_slices(train).shuffle(2000, seed=1).batch(64)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((64,)),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    backup = keras.callbacks.BackupAndRestore(
        str(Path(os.environ["CHECKPOINT_DIR"], "backup")),
        save_freq=options.save_every,
        delete_checkpoint=False,
    )
    callbacks = [backup, EndAtHalt()]
    model.fit(data, epochs=options.epochs, callbacks=callbacks, verbose=2 if rank == 0 else 0)
    chosen = model.predict(test[0], verbose=0).argmax(1)  # on every worker: they count together
    place = os.environ["RESULT_DIR"] if rank == 0 else tempfile.mkdtemp()
    model.save_weights(Path(place, f"model-{rank}.weights.h5"))  # all workers take part in it
    if rank == 0:
        accuracy = np.mean(chosen == test[1])
        print(f"trained by {learners} workers, test accuracy {accuracy:.4f}", flush=True)


main()
sys.stdout.flush()
os._exit(0)  # the workers' collective threads would wait for one another
