"""The interface of a launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dlctl.contract.plan import Resources


@dataclass(frozen=True)
class Ranks:
    """The rank and place of a process among those that a launcher started."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int


@dataclass(frozen=True)
class LaunchRequest:
    """The processes to start, and the launcher settings of the site file."""

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
    """A thing that a site lacks for a launcher."""

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


class Steps(Protocol):
    """The commands that start single processes, each on one node of a job, beside others."""

    def learner(self, cpus: int, gpus: int) -> list[str]:
        """Return the command of a learner with CPUs and GPUs of its own."""

    def restarted(self, gpus: int) -> list[str]:
        """Return the command of a learner that shares all CPUs and GPUs of the job on its node."""

    def server(self) -> list[str]:
        """Return the command of a node's server, which shares all CPUs."""


class Launcher(Protocol):
    """A program that starts N processes, such as srun."""

    kind: str
    """Its name in a site's file and in the plan."""
    for_sites: bool
    """Whether a site's file may name it."""
    starts_mpi: bool
    """Whether its processes share one MPI world, whose size the preflight compares."""
    scheduler: str
    """The batch system that it belongs to, without which it starts nothing; empty: none."""
    environment: Mapping[str, str]
    """Variables that it needs itself, whatever the job has."""
    prefixes: tuple[str, ...]
    """What the names of the variables begin with that it sets, or the system that it belongs to."""
    allocation: tuple[str, ...]
    """Those of them by which it finds the job in which it may start processes."""
    tasks_variable: str
    """In which a process reads how many were started with it; empty: in none of its own."""
    gpus_variable: str
    """In which a process reads the system's numbers of its step's GPUs; empty: in none."""
    ended_grace_s: float
    """The time from SIGTERM until the launcher kills a process, less a margin."""

    def argv(self, request: LaunchRequest) -> list[str]:
        """Return the command in front of the program."""

    def steps(self, program: str, extra: Sequence[str]) -> Steps:
        """Return its single steps; only a launcher that belongs to a batch system is asked."""

    def sharing(self, argv: Sequence[str], memory_bytes: int | None) -> list[str]:
        """Return a command that shares a job's CPUs and memory with others of its kind."""

    def reshaped(self, argv: Sequence[str], learners_on: Mapping[str, int]) -> list[str]:
        """Return the command for fewer learners.

        Args:
            learners_on: how many to start on each of those hosts of the job that are left.
        """

    def ranks(self, env: Mapping[str, str], resources: Resources) -> Ranks:
        """Return which process this is, from the variables that the launcher has set.

        Raises:
            LaunchError: none of the launcher's variables is set.
        """

    def pmi_hint(self, site: str) -> str:
        """Return a hint for the case that MPI does not see one world of all learners."""

    def lack(
        self, request: LaunchRequest, mpi_types: Sequence[str], program: str, site: str
    ) -> Lack | None:
        """Return what the site lacks for the request, or None.

        Args:
            request: as the site's file has it; its shape does not matter here.
            mpi_types: what `srun --mpi=list` printed, if anything.
            program: the path of mpirun on the site, or "".
            site: the site's name, for hints.
        """


def number(env: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is a number."""
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)
