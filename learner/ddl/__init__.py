"""Distributed deep learning for a script of your own, in a few lines.

    from learner import ddl

    ddl.init()
    ddl.broadcast_parameters(model)
    optimizer = ddl.DistributedOptimizer(optimizer)
    data = ddl.partition(data)

Runs under srun, mpirun and torchrun, and alone as a single process, with no MPI at all. The
operations are those of IBM's DDL library (its documentation, "DDL TF operator
functions/semantics"): Init, Bcast and AllReduceN.
"""

from __future__ import annotations

from learner.ddl.api import (
    CHECKPOINT_VARIABLE,
    SWITCH,
    Assigned,
    Checkpoints,
    DistributedOptimizer,
    abort,
    allreduce_n,
    allreduce_n_,
    barrier,
    broadcast_object,
    broadcast_parameters,
    empty_n,
    exchange,
    init,
    is_initialized,
    local_gpuid,
    local_rank,
    local_size,
    mode,
    partition,
    rank,
    scale_learning_rate,
    shutdown,
    size,
)
from learner.ddl.measured import log

__all__ = [
    "Assigned",
    "CHECKPOINT_VARIABLE",
    "Checkpoints",
    "DistributedOptimizer",
    "SWITCH",
    "abort",
    "allreduce_n",
    "allreduce_n_",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "empty_n",
    "exchange",
    "init",
    "is_initialized",
    "local_gpuid",
    "local_rank",
    "local_size",
    "log",
    "mode",
    "partition",
    "rank",
    "scale_learning_rate",
    "shutdown",
    "size",
]
