"""Gradient sums over learners, compared with gloo and plain MPI (`python -m benchmarks.exchange`).

The payload is that of ResNet-50: 161 tensors of float32, 25,557,032 elements, 102 MB. Each learner
runs one thread. Every learner fills its tensors before each run, as a backward pass does, and
checks the sums after it; neither is timed. A round takes as long as its slowest learner.

    allreduce_161_2         2 learners on one node; ours: `ddl.allreduce_n_` on tensors from
                            `ddl.empty_n`, which the exchange reduces in place
    allreduce_161_4         the same, 4 learners
    allreduce_161_2_copied  the same tensors in private memory; ours: `ddl.allreduce_n`, which
                            returns the sums as new tensors
    allreduce_nodes_2       the first one with 2 learners on each of 2 nodes of the test cluster,
                            whose network is a pair of virtual devices on this machine

Peers: `gloo`: one all_reduce on one flat buffer; `gloo_per_tensor`: one per tensor (3 runs);
`mpi`: one MPI_Allreduce on the flat buffer, in place; `mpi_chunked`: the same in slices of 4 MB;
`gloo_packed`, `mpi_packed`: tensors packed into a flat buffer (torch's _flatten_dense_tensors),
reduced (MPI in slices) and copied back.

All methods share one set of processes. Each works on preallocated buffers, with malloc as
`ddl.init` sets it, while whatever the others have started sleeps (gloo's threads, in epoll).

Floor: every learner reads and writes each element of its own payload once (`flat.add_(1)`), at the
same time as the others: no exchange that leaves each learner its own sums in place moves less. For
`…_copied`: one copy of the payload into a preallocated flat buffer.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from typing import Any

from benchmarks.learners import ONE_THREAD, REPOSITORY, read_results, run_learners
from benchmarks.report import Load, Result, Rounds, main, rounds
from benchmarks.slurm import slurm

_LEARNER = "benchmarks.exchange_learner"
_KEYS = (
    ("allreduce_161_2", "in_place", 2, rounds(31)),
    ("allreduce_161_4", "in_place", 4, rounds(15)),
    ("allreduce_161_2_copied", "copied", 2, rounds(15)),
)
_ON_NODES = "allreduce_nodes_2"
_ROUNDS_ON_NODES = rounds(9)


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; skip the nodes if cluster programs are missing."""
    for what, kind, learners, counts in _KEYS:
        for line in run_learners(learners, _LEARNER, kind, what, *map(str, counts[load])):
            yield _result(line)
    yield from _on_nodes(_ROUNDS_ON_NODES[load])


def _result(line: dict[str, Any]) -> Result:
    medians = {name: round(value, 5) for name, value in line["medians"].items()}
    return Result(
        line["what"], "s", medians.pop("ours"), medians.pop("floor"), medians, line["runs"]
    )


def _on_nodes(counts: Rounds) -> Iterator[Result]:
    """Yield the result of 2 learners on each of 2 nodes, started with an ordinary user's srun."""
    with slurm(_ON_NODES, nodes=2) as cluster:
        if cluster is None:
            return
        code = cluster.folder / "benchmark"
        for package in ("benchmarks", "learner", "psrv", "dlctl"):
            shutil.copytree(REPOSITORY / package, code / package,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        settings = {**ONE_THREAD, "OMPI_MCA_mpi_yield_when_idle": "1", "PYTHONPATH": str(code)}
        learner = [str(cluster.node_python), "-m", "mpi4py", "-m", _LEARNER,
                   "in_place", _ON_NODES, *map(str, counts), "results.jsonl"]  # fmt: skip
        script = "\n".join([
            *(f"export {name}={shlex.quote(value)}" for name, value in settings.items()),
            "srun -N 2 --ntasks-per-node=2 --mem=0 --mpi=pmix " + shlex.join(learner),
        ])  # fmt: skip
        exit_code, output, errors = cluster.run(script, timeout_s=600)
        if exit_code != 0:
            raise RuntimeError(f"srun: exit code {exit_code}: {errors[-3000:]} {output[-1000:]}")
        for line in read_results(cluster.home / "results.jsonl"):
            yield _result(line)


if __name__ == "__main__":
    main(measure)
