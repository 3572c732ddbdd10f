"""Partitions parameters into shards, and lays out a shard's file: equal on all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from dlctl.contract import Parameters, snapshot_file
from psrv.errors import ServerError
from psrv.shard.format import BLOCK_BYTES, REPLICA, ShardLayout
from psrv.solvers.solver import RoundSolver, Solver

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class ShardSet:
    """All shards of an attempt, as one node sees them: where they lie and what they hold."""

    folder: Path
    """In shared memory; holds this node's files, `shard-<number>`."""
    parameters: Parameters
    """The parameters of all shards together."""
    count: int
    """Number of shards."""
    attempt: int
    job_dir: Path | None = None
    """Where the primaries write snapshots; None if nobody writes any."""

    def path(self, number: int) -> Path:
        """Return the file of a shard on this node."""
        return self.folder / f"shard-{number}"

    def snapshot(self, number: int) -> Path:
        """Return where the newest snapshot of a shard is; only with a job directory."""
        assert self.job_dir is not None
        return self.job_dir / snapshot_file(self.attempt, number)

    def layout(self, number: int, solver: Solver | RoundSolver, kind: int) -> ShardLayout:
        """Return what the file of a shard holds; see `layout_of`."""
        return layout_of(self.parameters, self.count, number, solver, kind)


def split_evenly(count: int, shards: int, step: int) -> list[tuple[int, int]]:
    """Return the element ranges of the shards: even, and cut at multiples of `step`."""
    blocks = -(-count // step)
    cuts = [min(count, blocks * n // shards * step) for n in range(shards + 1)]
    return list(pairwise(cuts))


def ranges_of(parameters: Parameters, shards: int) -> list[tuple[int, int]]:
    """Return the element range (start, stop) of each shard."""
    return split_evenly(parameters.count, shards, BLOCK_BYTES // dtype_of(parameters).itemsize)


def dtype_of(parameters: Parameters) -> torch.dtype:
    """Return the dtype of the rows.

    Raises:
        ServerError: The parameter server does not support it.
    """
    if parameters.dtype not in _DTYPES:
        raise ServerError(
            f"the parameter server holds {' or '.join(_DTYPES)}, and not {parameters.dtype}"
        )
    return _DTYPES[parameters.dtype]


def layout_of(
    parameters: Parameters, shards: int, shard: int, solver: Solver | RoundSolver, kind: int
) -> ShardLayout:
    """Return what a shard's file holds.

    Args:
        parameters: What all shards hold together.
        shards: How many there are.
        shard: Which one.
        solver: The training's.
        kind: PRIMARY or REPLICA, of psrv.shard.format.
    """
    start, stop = ranges_of(parameters, shards)[shard]
    rows = 2 if kind == REPLICA else 1 + solver.rows + isinstance(solver, RoundSolver)
    return ShardLayout(stop - start, (dtype_of(parameters),) * rows, parameters.model, kind)
