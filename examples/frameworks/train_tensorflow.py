"""tf_keras with MultiWorkerMirroredStrategy: TF_CONFIG, which dlctl sets, names the workers.

BackupAndRestore saves every few steps, and at a halt after the running one; the data begins with
the step that comes next.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras
from digits import load_digits

from learner.adapters import Batches, tf_keras


def batches_from(samples, first_step):
    """Return all batches from a step on, without an end; every worker takes its part of each."""
    images, labels = samples
    source = Batches(len(images), 64, first_step, seed=1)

    def batches():
        while True:
            for chosen in source:
                yield images[chosen], labels[chosen]

    shape = (tf.TensorSpec((64, 64), tf.float32), tf.TensorSpec((64,), tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=shape)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.unbatch().batch(64).with_options(options), len(source)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()
    rank, learners = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    together = tf.distribute.MultiWorkerMirroredStrategy
    strategy = together() if learners > 1 else tf.distribute.get_strategy()
    train, test = load_digits()
    keras.utils.set_random_seed(1)
    done = tf_keras.steps_before(len(train[0]) // 64)
    if done and rank == 0:
        print(f"continuing at step {done}", flush=True)
    data, steps_per_epoch = batches_from(train, done)
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
    callbacks = [tf_keras.backup_and_restore(options.save_every)]
    model.fit(
        data, epochs=options.epochs, steps_per_epoch=steps_per_epoch, callbacks=callbacks,
        verbose=2 if rank == 0 else 0,
    )  # fmt: skip
    final = float(loss(train[1], model.predict(train[0], verbose=0)))
    chosen = model.predict(test[0], verbose=0).argmax(1)  # on every worker: they count together
    place = os.environ["RESULT_DIR"] if rank == 0 else tempfile.mkdtemp()
    model.save_weights(Path(place, f"model-{rank}.weights.h5"))  # all workers take part in it
    if rank == 0:
        accuracy = np.mean(chosen == test[1])
        print(f"trained by {learners} workers, final loss {final:.6f}, "
              f"test accuracy {accuracy:.4f}", flush=True)  # fmt: skip


main()
sys.stdout.flush()
os._exit(0)  # the workers' collective threads would wait for one another
