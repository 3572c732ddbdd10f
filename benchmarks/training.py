"""Training of two learners in a node beside DDP and none (`python -m benchmarks.training`).

One thread and a batch of 64 for each learner; samples a second over both learners. A sample is
28 x 28 random numbers, made once. The loop is the usual one: zero_grad, forward, cross entropy,
backward, step. SGD has a momentum of 0.9.

    train_mlp10m_2       a perceptron of 784, 3 x 2048 and 10 units: 10,020,874 parameters
    train_lenet_2        LeNet as in Caffe's example: 431,080 parameters
    train_mlp10m_adam_2  the first with Adam, whose step costs more

Ours is torch's optimizer in `ddl.DistributedOptimizer`. Peers: `ddp_gloo`: DistributedDataParallel
over gloo with its defaults; `ddp_gloo_tuned`: with gradient_as_bucket_view, static_graph, no
broadcast_buffers and the best bucket_cap_mb of those tried; `mpi_chunked`: gradients as views of
one flat buffer, MPI_Allreduce in slices of 4 MB after backward. Floor: no communication at all:
every learner trains the same model alone, at the same time as the other.

Every way has a model of its own with the same start; that all of them have DDP's weights after
some steps (rtol 1e-4) is checked before anything is timed. A run takes half a second or longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.learners import run_learners
from benchmarks.report import Result, main

_LEARNER = "benchmarks.training_learner"
_KEYS = (
    ("train_mlp10m_2", "mlp10m", "sgd"),
    ("train_lenet_2", "lenet", "sgd"),
    ("train_mlp10m_adam_2", "mlp10m", "adam"),
)
_LEARNERS = 2
_RUNS = 11


def measure(quick: bool = False) -> Iterator[Result]:
    """Yield each result as soon as it is known."""
    runs = 1 if quick else _RUNS
    for what, model, optimizer in _KEYS:
        for line in run_learners(_LEARNERS, _LEARNER, model, optimizer, what, str(runs)):
            rates = {name: round(rate, 1) for name, rate in line["medians"].items()}
            yield Result(
                line["what"], "samples/s", rates.pop("ours"), rates.pop("floor"), rates,
                line["runs"],
            )  # fmt: skip


if __name__ == "__main__":
    main(measure)
