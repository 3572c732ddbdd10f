"""Which elements are in which shard, and what its file holds: the same on every node."""

from __future__ import annotations

from itertools import pairwise

import torch

from dlctl.contract import Parameters
from psrv.errors import ServerError
from psrv.shard.format import BLOCK_BYTES, RELAY, ShardLayout
from psrv.solvers.solver import RoundSolver, Solver

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def divide(count: int, shards: int, step: int) -> list[tuple[int, int]]:
    """Return the ranges of elements of so many shards: even, and cut at multiples of `step`."""
    blocks = -(-count // step)
    cuts = [min(count, blocks * n // shards * step) for n in range(shards + 1)]
    return list(pairwise(cuts))


def ranges_of(parameters: Parameters, shards: int) -> list[tuple[int, int]]:
    """Return the first element of each shard, and the one after its last."""
    return divide(parameters.count, shards, BLOCK_BYTES // dtype_of(parameters).itemsize)


def dtype_of(parameters: Parameters) -> torch.dtype:
    """Return the type of the rows.

    Raises:
        ServerError: the parameter server does not work with it.
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
        kind: HOME or RELAY, of psrv.shard.format.
    """
    start, stop = ranges_of(parameters, shards)[shard]
    rows = 2 if kind == RELAY else 1 + solver.rows + isinstance(solver, RoundSolver)
    return ShardLayout(stop - start, (dtype_of(parameters),) * rows, parameters.model, kind)
