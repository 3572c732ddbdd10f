"""How learners agree: one Protocol, so far one MPI allreduce that sums in rank order."""

from __future__ import annotations

import sys

from learner.exchange.base import Exchange
from learner.faults import UserFault

__all__ = ["Exchange", "join"]


def join(learners: int) -> Exchange:
    """Return the exchange among `learners` learners; one learner needs no MPI.

    Raises:
        UserFault: there is no MPI, or its world has another size.
    """
    if learners == 1:
        from learner.exchange.single import SingleExchange

        return SingleExchange()
    try:
        from learner.exchange.mpi import MpiExchange
    except (ImportError, RuntimeError) as error:
        raise UserFault(
            f"{learners} learners need mpi4py and an MPI library in {sys.executable}: {error}",
            hint="see the site's environment: modules, or `dlctl sites setup`",
        ) from error
    exchange = MpiExchange()
    if exchange.size != learners:
        raise UserFault(
            f"the plan has {learners} learners, but MPI's world has the size {exchange.size}",
            hint="the launcher and the MPI library do not fit: see `srun --mpi=list` and the "
            "site's launcher",
        )
    return exchange
