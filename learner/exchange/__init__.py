"""Collective communication among learners: one Protocol, and the exchange that fits the place.

Imports torch, mpi4py (for more than one learner) and `learner.errors`. What passes through are sums
of flat tensors, and small values that learners share.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from dlctl.contract.launchers import LAUNCHERS
from learner.errors import UserFault
from learner.exchange.base import Exchange, Group

if TYPE_CHECKING:
    from learner.exchange.mpi import MpiGroup

__all__ = ["NAMES", "Exchange", "Group", "find_group", "join", "make_exchange"]

NAMES = ("auto", "shm", "mpi", "hierarchical", "torch")
_MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")


def join(learners: int, name: str = "auto", *, gpu: bool = False) -> Exchange:
    """Return the exchange among `learners` learners; one learner needs no MPI.

    Raises:
        UserFault: There is no MPI, its world has another size, or `name` does not work here.
    """
    if learners == 1:
        return make_exchange(None, name)
    group = _mpi_group(learners)
    if group.size != learners:
        raise UserFault(
            f"the plan has {learners} learners, but MPI's world has the size {group.size}",
            hint="the launcher and the MPI library do not fit: see `srun --mpi=list` and the "
            "site's launcher",
        )
    return make_exchange(group, name, gpu=gpu)


def find_group() -> Group | None:
    """Return the group that this process was started in: MPI's, torchrun's, or None if alone.

    Raises:
        UserFault: A launcher started several processes, and nothing connects them.
    """
    size = int(os.environ.get("WORLD_SIZE") or 1)
    # torchrun's processes inherit the MPI variables of the srun that may have started it.
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if not by_torchrun and any(name in os.environ for name in _MPI_VARIABLES):
        group = _mpi_group(0)
        if group.size > 1:
            return group
    if size > 1 or by_torchrun:
        from learner.exchange.torch_group import TorchGroup

        return TorchGroup() if size > 1 else None
    for launcher in LAUNCHERS.values():
        if (tasks := int(os.environ.get(launcher.tasks_variable) or 1)) > 1:
            raise UserFault(
                f"{launcher.kind} has started {tasks} processes, but nothing connects them",
                hint="start with `srun --mpi=pmix` (see `srun --mpi=list`), mpirun or torchrun",
            )
    return None


def make_exchange(group: Group | None, name: str = "auto", *, gpu: bool = False) -> Exchange:
    """Return the exchange of a name; for `auto`, the fastest one that works here.

    Raises:
        UserFault: The name is unknown, or the exchange can't work here.
    """
    if name not in NAMES:
        raise UserFault(f"there is no exchange {name!r}", hint=f"there are {', '.join(NAMES)}")
    if group is None or group.size == 1:
        from learner.exchange.single import SingleExchange

        return SingleExchange()
    if name == "auto":
        name = _fastest(group, gpu)
    return _MAKERS[name](group)


def _fastest(group: Group, gpu: bool) -> str:
    """Return the fastest exchange's name; every learner finds the same one."""
    from learner.exchange.memory import can_share

    is_mpi = type(group).__name__ == "MpiGroup"
    if any(group.collect(gpu)):
        return "torch"
    topology = group.topology
    if topology.nodes == group.size or not can_share(group):
        return "mpi" if is_mpi else "torch"
    if topology.nodes == 1:
        return "shm"
    return "hierarchical" if is_mpi else "torch"


def _shm(group: Group) -> Exchange:
    from learner.exchange.memory import can_share
    from learner.exchange.shm import ShmExchange

    if group.topology.nodes > 1 or not can_share(group):
        raise UserFault(
            f"the exchange shm needs all learners on one node, and they are {group.topology.mode} "
            "(learners per node x nodes)",
            hint="use hierarchical, or auto",
        )
    return ShmExchange(group)


def _mpi(group: Group) -> Exchange:
    from learner.exchange.mpi import MpiExchange

    return MpiExchange(_of_mpi(group, "mpi"))


def _hierarchical(group: Group) -> Exchange:
    from learner.exchange.hierarchical import HierarchicalExchange

    return HierarchicalExchange(_of_mpi(group, "hierarchical"))


def _of_mpi(group: Group, name: str) -> MpiGroup:
    from learner.exchange.mpi import MpiGroup

    if not isinstance(group, MpiGroup):
        raise UserFault(
            f"the exchange {name} needs learners that MPI has started, and torchrun started these",
            hint="start with srun or mpirun, or use auto",
        )
    return group


def _torch(group: Group) -> Exchange:
    from learner.exchange.torch_group import TorchExchange, start

    start(group.rank, group.size, group.share)
    return TorchExchange(group)


_MAKERS = {"shm": _shm, "mpi": _mpi, "hierarchical": _hierarchical, "torch": _torch}


def _mpi_group(learners: int) -> Group:
    try:
        from learner.exchange.mpi import MpiGroup
    except (ImportError, RuntimeError) as error:
        count = f"{learners} learners" if learners else "learners started by MPI"
        raise UserFault(
            f"{count} need mpi4py and an MPI library in {sys.executable}: {error}",
            hint="see the site's environment: modules, the container's image, or "
            "`dlctl sites setup SITE`",
        ) from error
    return MpiGroup()
