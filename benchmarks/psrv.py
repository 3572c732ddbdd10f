"""The parameter server, compared with others (`python -m benchmarks.psrv`).

The payload is that of ResNet-50: 25,557,032 elements of float32, 102 MB. One thread per process. In
an update a learner pushes a gradient and pulls the weights after SGD steps with it and with the
others' gradients (Downpour SGD). Updates per second are over all learners, which don't wait for
each other.

    psrv_2          2 learners on one node
    psrv_4          4 learners on one node
    psrv_memory     the memory that these 4 use for the server, beyond their own weights and
                    gradients, in copies of the parameters; the floor is one
    psrv_nodes_2    2 nodes with a learner each, and the same with links of 10 and 5 Gbit/s: see
                    benchmarks/psrv_nodes.py
    psrv_straggler  a learner that is slower than the others: see benchmarks/psrv_straggler.py

Ours is `Client.push_pull` on one shard. Floor: each learner does the same arithmetic on its own
private memory, by the same functions in C, including the copy of each block from which a killed
learner's work is undone; `floor_torch`: the same by torch. The peers have a server process of their
own. `mpi_two_sided`: MPI messages in slices of 4 MB; `torch_rpc`: torch.distributed.rpc, with the
gradient as argument and the weights as result; `ray` and `ray_in_place`: a Ray actor that is called
the same way, where Python's `ray` is installed (see benchmarks/psrv_ray.py).

Each method has processes of its own. All exist at once; those whose turn it is not sleep in a read.
torch_rpc and the Ray actors are measured after the others, each alone, because their threads work
even while idle. After the last round the weights are checked: they must contain all updates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks import psrv_nodes, psrv_ray, psrv_straggler
from benchmarks.report import Load, Result, compare, leave_out, main, medians, rounds
from benchmarks.turns import LearnerSet, start

_KEYS = (("psrv_2", (2, 2, 1)), ("psrv_4", (4, 4, 2)))
"""Each with its learners."""
_ROUNDS = rounds(11, 1)
_UPDATES = 8, 8, 1
"""Per learner and run."""


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known."""
    peers = ["floor_torch", "mpi_two_sided"]
    restless = _restless()
    for what, learners in _KEYS:
        yield _measure(what, learners[load], peers, restless, load)
        if load is Load.SMOKE:
            peers, restless = [], []  # they have run
    yield _memory(_KEYS[-1][1][load])
    yield from psrv_nodes.measure(load)
    yield from psrv_straggler.measure(load)


def _measure(what: str, learners: int, peers: list[str], restless: list[str], load: Load) -> Result:
    counts = dict.fromkeys(("ours", "floor", *peers), learners)
    if "mpi_two_sided" in counts:
        counts["mpi_two_sided"] += 1  # the server
    with _rates(counts, learners, _UPDATES[load]) as rates:
        result = compare(what, rates.pop("ours"), rates.pop("floor"), rates, unit="updates/s",
                         rounds=_ROUNDS[load])  # fmt: skip
    alone = {}
    for way in restless:
        with _rates({way: learners + 1}, learners, _UPDATES[load]) as rates:
            alone.update(medians(rates, _ROUNDS[load]))
    rounded = {name: round(value, 4) for name, value in alone.items()}
    return replace(result, peers={**result.peers, **rounded})


def _memory(learners: int) -> Result:
    with start("ours", learners, "benchmarks.psrv_learner", "ours") as learner_set:
        learner_set.ask("update", 2)
        copies: float = sum(answer["value"] for answer in learner_set.ask("memory", None))
    return Result("psrv_memory", "copies", round(copies, 4), 1.0)


def _restless() -> list[str]:
    """Return the methods whose processes work even while idle."""
    if psrv_ray.is_installed():
        return ["torch_rpc", "ray", "ray_in_place"]
    leave_out("ray", "ray_in_place", why="Ray is not installed")
    return ["torch_rpc"]


@contextlib.contextmanager
def _rates(
    counts: dict[str, int], learners: int, updates: int
) -> Iterator[dict[str, Callable[[], float]]]:
    """Start the processes of each method; at the end check their weights."""
    with contextlib.ExitStack() as stack:
        sets = {
            way: stack.enter_context(start(way, count, "benchmarks.psrv_learner", way))
            for way, count in counts.items()
        }
        yield {way: _rate(learner_set, learners, updates) for way, learner_set in sets.items()}
        for learner_set in sets.values():
            learner_set.ask("check", None)


def _rate(learner_set: LearnerSet, learners: int, updates: int) -> Callable[[], float]:
    return lambda: learners * updates / learner_set.time_s("update", updates)


if __name__ == "__main__":
    main(measure)
