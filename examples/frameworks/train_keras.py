"""Keras 3 on JAX, one learner: fit saves with Orbax after each epoch and continues from there."""

import argparse
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import orbax.checkpoint as ocp
from digits import load_digits

HALTED = 85


def state_of(model):
    """Return everything that training changes."""
    variables = model.variables + model.optimizer.variables
    return {str(number): np.asarray(variable) for number, variable in enumerate(variables)}


class Keep(keras.callbacks.Callback):
    """Saves the weights after each epoch, and ends after the one in which a signal came."""

    def __init__(self, keeper):
        super().__init__()
        self.keeper, self.asked = keeper, False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_):
        self.asked = True

    def on_epoch_end(self, epoch, logs=None):
        self.keeper.save(epoch + 1, args=ocp.args.StandardSave(state_of(self.model)))
        if self.asked:
            print(f"halted after epoch {epoch + 1}", flush=True)
            self.keeper.wait_until_finished()
            sys.exit(HALTED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    train, test = load_digits()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    folder = Path(os.environ["CHECKPOINT_DIR"]).resolve()
    settings = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(folder, options=settings) as keeper:
        done = keeper.latest_step() or 0
        if done:
            found = keeper.restore(done, args=ocp.args.StandardRestore(state_of(model)))
            for number, variable in enumerate(model.variables + model.optimizer.variables):
                variable.assign(found[str(number)])
            print(f"continuing after epoch {done}", flush=True)
        keep = Keep(keeper)
        images, labels = train
        for epoch in range(done, options.epochs):  # each in an order that depends on it alone
            order = np.random.default_rng(epoch).permutation(len(images))
            model.fit(
                images[order], labels[order], batch_size=64, epochs=epoch + 1, initial_epoch=epoch,
                shuffle=False, verbose=2, callbacks=[keep],
            )  # fmt: skip
        keeper.wait_until_finished()
    accuracy = model.evaluate(*test, verbose=0)[1]
    model.save(Path(os.environ["RESULT_DIR"], "model.keras"))
    final = model.evaluate(*train, verbose=0)[0]
    print(f"on {keras.backend.backend()}, final loss {final:.6f}, test accuracy {accuracy:.4f}",
          flush=True)  # fmt: skip


main()
