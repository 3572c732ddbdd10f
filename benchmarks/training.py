"""Training with two learners on one node, compared with DDP (`python -m benchmarks.training`).

One thread and a batch of 64 for each learner; samples per second over both learners. A sample is
28 x 28 random numbers, generated once. The loop is the usual one: zero_grad, forward, cross
entropy, backward, step. SGD has a momentum of 0.9.

    train_mlp10m_2       a perceptron of 784, 3 x 2048 and 10 units: 10,020,874 parameters
    train_lenet_2        LeNet as in Caffe's example: 431,080 parameters
    train_mlp10m_adam_2  the first with Adam, whose step costs more
    metrics_cost         what the built-in loop does to report a step, in % of a step of LeNet

Ours is torch's optimizer in `ddl.DistributedOptimizer`. Floor: no communication at all: two plain
programs, each of which trains the same model alone, at the same time as the other. Peers:
`ddp_gloo`: DistributedDataParallel over gloo with its defaults; `ddp_gloo_tuned`: with
gradient_as_bucket_view, static_graph, no broadcast_buffers and the bucket_cap_mb that is fastest in
a short trial before; `mpi_chunked`: gradients as views of one flat buffer, MPI_Allreduce in slices
of 4 MB after backward. `none_malloc` and `ddp_gloo_tuned_malloc` are the floor and tuned DDP with
glibc's malloc set as `ddl.init` sets it (learner.system.memory): they show how much of our gain is
due to that.

Each method has two processes of its own that run nothing else. A user, too, runs only one of these
methods, and in a shared process the memory use of one method would affect another: glibc raises its
threshold for mapping blocks when large ones are freed. The perceptron's step had thousands of page
faults in a plain process, and none in a process where other methods had freed large blocks. All
processes exist at once; those whose turn it is not sleep in a read. Every round begins with a
different method.

All start with the same weights and see the same samples. Before anything is timed, the weights of
ours, tuned DDP and MPI after some steps are compared with those of DDP with its defaults (rtol
1e-4). A run has as many steps as take the floor half a second.

The cost of metrics is timed by itself, in the processes that take the steps, because runs with and
without metrics differ by less than runs vary. Its floor reads the clock once per step.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.report import Load, Result, Rounds, compare, main, medians, rounds
from benchmarks.turns import LearnerSet, start

_KEYS = (
    ("train_mlp10m_2", "mlp10m", "sgd"),
    ("train_lenet_2", "lenet", "sgd"),
    ("train_mlp10m_adam_2", "mlp10m", "adam"),
)
_FLOOR = "none"
_ALIKE = ("ddp_gloo", "ours", "ddp_gloo_tuned", "ddp_gloo_tuned_malloc", "mpi_chunked")
"""These must train like the first of them."""
_WAYS = (*_ALIKE, _FLOOR, "none_malloc")
_FEW_WAYS = ("ours", _FLOOR)
"""What the smallest load has where the others have run before, with another model."""
_LEARNERS, _BATCH = 2, 64
_ROUNDS = rounds(11, 1)
_LEAST_S = 0.5, 0.5, 0.01
"""A run has as many steps as take the floor this long."""
_STEPS_COMPARED = 5, 5, 1
_STEPS_REPORTED = 1000
"""Steps that are reported in a run."""
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-4, 1e-6
_BUCKETS_MB = (25, 1, 4, 100)
"""Tried for tuned DDP; the first is DDP's default, which all but the full load use."""
_TRIAL_ROUNDS = Rounds(3, 1)


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known."""
    buckets_mb: dict[str, int] = {}
    for what, model, optimizer in _KEYS:
        if model not in buckets_mb:
            is_full = load is Load.FULL
            found_mb = _fastest_bucket_mb(model, optimizer) if is_full else _BUCKETS_MB[0]
            buckets_mb[model] = found_mb
            print(f"{model}: bucket_cap_mb {found_mb} for tuned DDP", file=sys.stderr)
        yield _measure(what, model, optimizer, buckets_mb[model], load)
    yield _measure_metrics(load)


def _measure_metrics(load: Load) -> Result:
    """Return the cost of metrics, in percent of a step."""
    learners = 1 if load is Load.SMOKE else _LEARNERS
    with _start("ours", "ours", "lenet", "sgd", _BUCKETS_MB[0], learners) as learner_set:
        count = _count_steps(learner_set, _LEAST_S[load])

        def percent_of_step(order: str) -> Callable[[], float]:
            def percent() -> float:
                step_s = learner_set.time_s("steps", count) / count
                return (
                    100
                    * learner_set.time_s(order, [_STEPS_REPORTED, step_s])
                    / _STEPS_REPORTED
                    / step_s
                )

            return percent

        return compare(
            "metrics_cost", percent_of_step("tell"), percent_of_step("read_clock"),
            unit="% of a step", rounds=_ROUNDS[load],
        )  # fmt: skip


def _measure(what: str, model: str, optimizer: str, bucket_mb: int, load: Load) -> Result:
    is_first = what == _KEYS[0][0]
    ways, learners = (_WAYS, _LEARNERS) if is_first or load is not Load.SMOKE else (_FEW_WAYS, 1)
    with contextlib.ExitStack() as stack:
        sets = {
            way: stack.enter_context(_start(way, way, model, optimizer, bucket_mb, learners))
            for way in ways
        }
        for learner_set in sets.values():
            learner_set.ask("steps", _STEPS_COMPARED[load])
        _check(sets)
        count = _count_steps(sets[_FLOOR], _LEAST_S[load])
        rates = {way: _rate(learner_set, count) for way, learner_set in sets.items()}
        return compare(
            what, rates.pop("ours"), rates.pop(_FLOOR), rates, unit="samples/s",
            rounds=_ROUNDS[load],
        )  # fmt: skip


def _start(
    name: str, way: str, model: str, optimizer: str, bucket_mb: int, learners: int = _LEARNERS
) -> contextlib.AbstractContextManager[LearnerSet]:
    module = "benchmarks.training_learner"
    return start(name, learners, module, way, model, optimizer, str(bucket_mb))


def _rate(learner_set: LearnerSet, count: int) -> Callable[[], float]:
    """Return a function that takes `count` steps and returns all learners' samples per second."""

    def rate() -> float:
        learner_set.ask("steps", 2)  # bring its memory back into the processor's caches
        return count * _BATCH * learner_set.size / learner_set.time_s("steps", count)

    return rate


def _count_steps(learner_set: LearnerSet, least_s: float) -> int:
    """Return how many steps of the loop take at least so long."""
    learner_set.ask("steps", 2)
    return math.ceil(least_s / (learner_set.time_s("steps", 5) / 5))


def _fastest_bucket_mb(model: str, optimizer: str) -> int:
    """Return the bucket_cap_mb with which tuned DDP is fastest in a few runs of each."""
    with contextlib.ExitStack() as stack:
        sets = {
            size: stack.enter_context(
                _start(f"bucket_cap_mb {size}", "ddp_gloo_tuned", model, optimizer, size)
            )
            for size in _BUCKETS_MB
        }
        count = _count_steps(sets[_BUCKETS_MB[0]], _LEAST_S[Load.FULL])
        rates = {str(size): _rate(learner_set, count) for size, learner_set in sets.items()}
        speeds = medians(rates, _TRIAL_ROUNDS)
    return int(max(speeds, key=lambda size: speeds[size]))


def _check(sets: dict[str, LearnerSet]) -> None:
    """Raise AssertionError if a learner's weights differ from those of DDP's first learner."""
    import numpy as np

    alike = [way for way in _ALIKE if way in sets]
    for way in alike:
        sets[way].ask("write_weights", "weights")
    expected: Any = None
    for way in alike:
        for number in range(sets[way].size):
            file = sets[way].folder / f"weights.{number}"
            weights = np.fromfile(file, np.float32)
            file.unlink()
            expected = weights if expected is None else expected
            np.testing.assert_allclose(
                weights, expected, _RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE,
                err_msg=f"weights of {way}, learner {number}",
            )  # fmt: skip


if __name__ == "__main__":
    main(measure)
