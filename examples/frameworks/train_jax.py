"""JAX over several processes: the data is sharded over all of their devices, the weights are not.

Orbax saves every 20 steps, and at a halt after the running step, on which all processes agree.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from digits import load_digits
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HALTED = 85
RANK, LEARNERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if LEARNERS > 1:  # explicit: by itself JAX reads Slurm's variables, wrongly under mpirun
    jax.distributed.initialize(os.environ["JAX_COORDINATOR"], LEARNERS, RANK)


def loss_of(weights, images, labels):
    hidden = jax.nn.relu(images @ weights["w1"] + weights["b1"])
    scores = jax.nn.log_softmax(hidden @ weights["w2"] + weights["b2"])
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1))


@jax.jit
def train_step(weights, images, labels, lr):
    loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
    return jax.tree.map(lambda w, g: w - lr * g, weights, gradients), loss


def replicated(value, sharding):
    """Return a global array that every device has whole."""
    return jax.make_array_from_callback(value.shape, sharding, lambda i: np.asarray(value)[i])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.3)
    options = parser.parse_args()
    asked = []
    signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
    (images, labels), (test_images, test_labels) = load_digits()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    shared, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
    first, second = jax.random.split(jax.random.key(1))
    weights = {
        "w1": jax.random.normal(first, (64, 128)) * 0.1,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(second, (128, 10)) * 0.1,
        "b2": jnp.zeros(10),
    }
    weights = jax.tree.map(lambda w: replicated(w, shared), weights)
    folder = Path(os.environ["CHECKPOINT_DIR"]).resolve()
    settings = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(folder, options=settings) as keeper:
        done = keeper.latest_step() or 0
        if done:
            weights = keeper.restore(done, args=ocp.args.StandardRestore(weights))
            print(f"continuing at step {done}", flush=True)
        size = len(images) // LEARNERS
        mine = slice(RANK * size, (RANK + 1) * size)
        parts = images[mine], labels[mine]
        data = [jax.make_array_from_process_local_data(split, part) for part in parts]
        for step in range(done + 1, options.steps + 1):
            weights, loss = train_step(weights, *data, options.lr)
            halt = bool(np.any(multihost_utils.process_allgather(np.array(bool(asked)))))
            if step % 20 == 0 or halt:
                keeper.save(step, args=ocp.args.StandardSave(weights))
            if step % 50 == 0 and RANK == 0:
                print(f"step {step} loss {float(loss):.4f}", flush=True)
            if halt:
                if RANK == 0:
                    print(f"halted after step {step}", flush=True)
                keeper.wait_until_finished()
                sys.exit(HALTED)
        keeper.wait_until_finished()
    if RANK == 0:
        here = {name: np.asarray(value.addressable_data(0)) for name, value in weights.items()}
        scores = np.maximum(test_images @ here["w1"] + here["b1"], 0) @ here["w2"] + here["b2"]
        np.savez(Path(os.environ["RESULT_DIR"], "weights.npz"), **here)
        accuracy = np.mean(scores.argmax(1) == test_labels)
        final = float(loss_of(here, images, labels))
        print(f"trained by {LEARNERS} processes, final loss {final:.6f}, "
              f"test accuracy {accuracy:.4f}", flush=True)  # fmt: skip


main()
