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

from learner.ddl import api
from learner.ddl.api import *  # noqa: F403
from learner.ddl.measured import log as log

__all__ = ["log"]
__all__ += api.__all__
