"""A parameter server beside others (`python -m benchmarks.psrv`).

The payload is that of ResNet-50: 25,557,032 elements of float32, 102 MB. One thread a process. In
an update a learner pushes a gradient and pulls the weights that a step of SGD has made of it and of
the others' (Downpour SGD); updates a second are over all learners, who don't wait for each other.

    psrv_2  2 learners in a node
    psrv_4  4 learners in a node

Ours is `Client.push_pull` on one shard. Floor: each learner does the same arithmetic on memory of
its own, nobody else's, with the copy of each block that lets a killed learner's work be undone.
Peers, with a server process of their own: `mpi_two_sided`: MPI messages in slices of 4 MB;
`torch_rpc`: torch.distributed.rpc, the gradient as argument and the weights as result.

Each way has processes of its own, all alive at once; those whose turn it is not sleep in a read.
That the weights are those of all updates is checked after the last round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from benchmarks.report import Result, compare, main
from benchmarks.turns import LearnerSet, start

_KEYS = (("psrv_2", 2), ("psrv_4", 4))
_SERVED = ("mpi_two_sided", "torch_rpc")
"""What has one process more, the first: the server."""
_RUNS, _WARM_UP = 11, 1
_UPDATES = 8
"""Of each learner in a run."""


def measure(quick: bool = False) -> Iterator[Result]:
    """Yield each result as soon as it is known."""
    for what, learners in _KEYS:
        with contextlib.ExitStack() as stack:
            sets = {
                way: stack.enter_context(start(way, count, "benchmarks.psrv_learner", way))
                for way, count in _ways(learners)
            }
            rates = {way: _rate(learner_set, learners) for way, learner_set in sets.items()}
            yield compare(
                what, rates.pop("ours"), rates.pop("floor"), rates, unit="updates/s",
                runs=1 if quick else _RUNS, warm_up=0 if quick else _WARM_UP,
            )  # fmt: skip
            for learner_set in sets.values():
                learner_set.ask("check", None)


def _ways(learners: int) -> Iterator[tuple[str, int]]:
    yield from (("ours", learners), ("floor", learners))
    yield from ((way, learners + 1) for way in _SERVED)


def _rate(learner_set: LearnerSet, learners: int) -> Callable[[], float]:
    return lambda: learners * _UPDATES / learner_set.time_s("update", _UPDATES)


if __name__ == "__main__":
    main(measure)
