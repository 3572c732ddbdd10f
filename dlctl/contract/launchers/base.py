"""What a launcher has to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dlctl.contract.plan import Resources


@dataclass(frozen=True)
class Ranks:
    """Which one a process is among those that a launcher started."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int


@dataclass(frozen=True)
class LaunchRequest:
    """What is to be started, and what the site's file says of its launcher."""

    learners: int
    nodes: int
    cpus_per_learner: int
    executable: str | None = None
    mpi: str | None = None
    """The PMI that the launcher should speak, as srun's `--mpi` names it."""
    extra: Sequence[str] = field(default_factory=tuple)
    """Further options of the launcher."""


@dataclass(frozen=True)
class Lack:
    """What a site lacks for a launcher."""

    what: str
    hint: str
    fatal: bool
    """False if a training with one learner runs all the same."""


class LaunchError(Exception):
    """A process can't tell its rank."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Launcher(Protocol):
    """A program that starts N processes, such as srun."""

    kind: str
    """Its name in a site's file and in the plan."""
    for_sites: bool
    """Whether a site's file may name it."""
    starts_mpi: bool
    """Whether its processes share one MPI world, whose size the preflight compares."""
    ended_grace_s: float
    """What a process has from SIGTERM on until the launcher kills it, less a margin."""

    def argv(self, request: LaunchRequest) -> list[str]:
        """Return what goes before the program."""

    def ranks(self, env: Mapping[str, str], resources: Resources) -> Ranks:
        """Return which process this is, from the variables that the launcher has set.

        Raises:
            LaunchError: none of the variables that are known is set.
        """

    def pmi_hint(self, site: str) -> str:
        """Return what to change where MPI sees other worlds than one of all learners."""

    def lack(
        self, request: LaunchRequest, mpi_types: Sequence[str], program: str, site: str
    ) -> Lack | None:
        """Return what the site lacks, as far as it was asked.

        Args:
            request: as the site's file has it; its shape does not matter here.
            mpi_types: what `srun --mpi=list` printed, if anything.
            program: the path of mpirun on the site, or "".
            site: the site's name, for hints.
        """


def number(env: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is a number."""
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)
