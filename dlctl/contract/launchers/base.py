"""The base class of a launcher, which starts one learner as a plain child."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlctl.contract.ground.hinted import HintedError

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
    """A program or setting that a site lacks for a launcher."""

    what: str
    hint: str
    fatal: bool
    """False if a training with one learner runs all the same."""


class LaunchError(HintedError):
    """A process can't tell its rank."""


class Launcher:
    """Starts the learners of a job; this launcher starts a single learner as a plain child.

    The class of a program that starts N processes, such as srun, overrides what differs.

    Attributes:
        kind: its name in a site's file and in the plan.
        for_sites: whether a site's file may name it.
        starts_mpi: whether its processes share one MPI world, whose size the preflight compares.
        scheduler: the batch system without which it starts nothing; empty: none.
        environment: variables that it needs itself, whatever the job has.
        prefixes: of the names of the variables that it, or the system that it belongs to, sets.
        allocation: those of them by which it finds the job in which it may start processes.
        tasks_variable: in which a process reads how many were started with it; empty: in none.
        gpus_variable: in which a process reads the system's numbers of its step's GPUs.
        ended_grace_s: the time from SIGTERM until the launcher kills a process, less a margin.
        end: how it says that a process has ended badly; its groups have the ranks.
        stop: how it, or MPI, begins to say that it ends the others; what follows is no cause.
        killed: how it says that it has killed all of them.
        waited: how it says that it has waited in vain for the rest of them to end.
        rest: how it says that it ends the rest of them because one has ended with exit code 0; a
            group has the rank of the one.
    """

    kind = "direct"
    for_sites = False
    starts_mpi = False
    scheduler = ""
    environment: Mapping[str, str] = MappingProxyType({})
    prefixes: tuple[str, ...] = ()
    allocation: tuple[str, ...] = ()
    tasks_variable = ""
    gpus_variable = ""
    ended_grace_s = 5.0
    end = stop = rest = killed = waited = re.compile("(?!)")  # which matches nothing

    def ends(self, words: Iterable[str]) -> list[int]:
        """Return the ranks in the order in which the launcher saw their processes end badly."""
        return self._heard(itertools.takewhile(lambda line: not self.stop.search(line), words))

    def _heard(self, words: Iterable[str]) -> list[int]:
        found = filter(None, map(self.end.search, words))
        texts = (text for match in found for text in match.groups() if text)
        return list(dict.fromkeys(rank for text in texts for rank in _numbers(text)))

    def unheard(self, words: Sequence[str], ranks: Iterable[int]) -> list[int]:
        """Return for which of these ranks it waited in vain while it heard of others."""
        heard, in_vain = self._heard(words), any(map(self.waited.search, words))
        return [rank for rank in ranks if heard and in_vain and rank not in heard]

    def ends_the_rest(self, line: str, done: Sequence[int]) -> bool:
        """Return whether a line says that an end with exit code 0 has ended the others.

        Args:
            done: the ranks that have ended so.
        """
        found = self.rest.search(line)
        return found is not None and all(int(rank) in done for rank in found.groups() if rank)

    def argv(self, request: LaunchRequest) -> list[str]:  # noqa: ARG002
        """Return the command in front of the program."""
        return []

    def steps(self, program: str, extra: Sequence[str]) -> SrunSteps:
        """Return its single steps; only a launcher that belongs to a batch system has any."""
        raise NotImplementedError

    def sharing(self, argv: Sequence[str], memory_bytes: int | None) -> list[str]:  # noqa: ARG002
        """Return a command that shares a job's CPUs and memory with others of its kind."""
        return list(argv)

    def reshaped(self, argv: Sequence[str], learners_on: Mapping[str, int]) -> list[str]:  # noqa: ARG002
        """Return the command for fewer learners.

        Args:
            learners_on: how many to start on each of those hosts of the job that are left.
        """
        return list(argv)

    def ranks(self, env: Mapping[str, str], resources: Resources) -> Ranks:  # noqa: ARG002
        """Return which process this is, from the variables that the launcher has set.

        Raises:
            LaunchError: none of the launcher's variables is set.
        """
        return Ranks(0, 1, 0, 1, 0)

    def pmi_hint(self, site: str) -> str:  # noqa: ARG002
        """Return a hint for the case that MPI does not see one world of all learners."""
        return ""

    def lack(
        self,
        request: LaunchRequest,  # noqa: ARG002
        mpi_types: Sequence[str],  # noqa: ARG002
        program: str,  # noqa: ARG002
        site: str,  # noqa: ARG002
    ) -> Lack | None:
        """Return what the site lacks for the request, or None.

        Args:
            request: as the site's file has it; its shape does not matter here.
            mpi_types: what `srun --mpi=list` printed, if anything.
            program: the path of mpirun on the site, or "".
            site: the site's name, for hints.
        """
        return None


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as `0,2-4`."""
    parts = (part.partition("-") for part in text.split(","))
    return [n for first, _, last in parts for n in range(int(first), int(last or first) + 1)]


def number(env: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is a number."""
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)


_BESIDE = ["--overlap", "--cpu-bind=none"]
_ALONE = ["--mpi=none", "--nodes=1", "--ntasks=1", "--no-kill", "--mem=0"]


class SrunSteps:
    """The commands of steps; the name of the node is added at their start.

    `--mem=0`: all steps share the job's memory, as the learners of one step do. Otherwise the first
    step would take all of it, and the next ones would wait for its end. The same holds for GRES
    that a step does not name.

    Args:
        program: srun, or its path.
        extra: Further options of the site.
    """

    def __init__(self, program: str, extra: Sequence[str]) -> None:
        self._program, self._extra = program, list(extra)

    def learner(self, cpus: int, gpus: int) -> list[str]:
        """Return the command of a learner with CPUs of its own, not all of the node's."""
        return self._step(*_ALONE, f"--cpus-per-task={cpus}", "--exact", _gres(gpus))

    def restarted(self, gpus: int) -> list[str]:
        """Return the command that restarts a learner on a node with so many GPUs of the job.

        Once a job has lost a node, Slurm 22.05 counts the cores and GPUs of ended steps as taken. A
        step that wants its own would wait forever, so this one shares all of them.
        """
        return self._step(*_ALONE, *_BESIDE, _gres(gpus))

    def server(self) -> list[str]:
        """Return the command of a node's server.

        `--overlap`: it takes no CPU away from the learners' steps, and may run on any of theirs.
        `--cpu-bind=none`: it may run on all of them; if Slurm binds nothing, its log says so.
        """
        return self._step(*_ALONE, *_BESIDE, _gres(0))

    def _step(self, *options: str) -> list[str]:
        return [self._program, *options, *self._extra]


def _gres(gpus: int) -> str:
    return f"--gres=gpu:{gpus}" if gpus else "--gres=none"
