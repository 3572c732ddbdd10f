"""The mpirun of Open MPI or MPICH, started in the job script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlctl.contract.launchers.base import Lack, Launcher, LaunchError, LaunchRequest, Ranks, number

if TYPE_CHECKING:
    from dlctl.contract.plan import Resources


class Mpirun(Launcher):
    """Starts one process for each learner, in blocks."""

    kind = "mpirun"
    for_sites = True
    starts_mpi = True
    prefixes: tuple[str, ...] = (
        "PMI_", "PMI2_", "PMIX_", "PRTE_", "HYDRA_", "OMPI_MCA_ess", "OMPI_MCA_orte", "OMPI_COMM_",
        "OMPI_UNIVERSE_", "OMPI_APP_", "OMPI_FIRST_", "OMPI_NUM_", "OMPI_FILE_", "OMPI_COMMAND",
        "OMPI_ARGV", "MPI_LOCAL",
    )  # fmt: skip
    """Other variables of OMPI_MCA_ are a user's settings."""
    ended_grace_s = 0.4
    """Open MPI's mpirun waits one second between SIGTERM and SIGKILL."""
    end = re.compile(
        r"Process name: \[(?:\[\d+,\d+\],|[\w.-]+@\d+,)(\d+)\]"
        r"|noticed that process rank (\d+) |^= *RANK (\d+) PID "
    )
    """Open MPI and Intel MPI name only the first; MPICH names its process id."""
    stop = re.compile(r"MPI_ERRORS_ARE_FATAL")
    rest = re.compile(
        r"^improperly\.|exiting improperly|exited without calling \"finalize|^= +CLEANING UP REMAIN"
    )

    def argv(self, request: LaunchRequest) -> list[str]:
        """Return mpirun with the number of processes."""
        return [request.executable or self.kind, "-n", str(request.learners), *request.extra]

    def reshaped(self, argv: Sequence[str], learners_on: Mapping[str, int]) -> list[str]:
        """Return mpirun with another number of processes, on these nodes of the job.

        Open MPI and MPICH both know `--host` in this form.
        """
        program, *options = argv
        if "--host" in options:
            at = options.index("--host")
            del options[at : at + 2]
        hosts = ",".join(f"{host}:{count}" for host, count in learners_on.items())
        return [program, "-n", str(sum(learners_on.values())), "--host", hosts, *options[2:]]

    def ranks(self, env: Mapping[str, str], resources: Resources) -> Ranks:
        """Read Open MPI's variables or MPICH's; not Slurm's, which mean the batch script."""
        rank = number(env, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
        size = number(env, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
        if rank is None or size is None:
            raise LaunchError(
                "mpirun set neither OMPI_COMM_WORLD_RANK nor PMI_RANK for the learners.",
                hint="Check `launcher` in the site file: it knows OpenMPI's and MPICH's mpirun.",
            )
        node, first = resources.node_of(rank)
        local = number(env, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
        local_size = number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
        return Ranks(
            rank,
            size,
            rank - first if local is None else local,
            resources.learners_per_node[node] if local_size is None else local_size,
            node,
        )

    def pmi_hint(self, site: str) -> str:
        """Return that another mpirun is needed."""
        return (
            "This mpirun belongs to another MPI library than mpi4py's; name the right one under "
            f"`launcher` in the site file of {site} (with srun: set `launcher.mpi`, see "
            "`srun --mpi=list`)."
        )

    def lack(
        self,
        request: LaunchRequest,  # noqa: ARG002
        mpi_types: Sequence[str],  # noqa: ARG002
        program: str,
        site: str,
    ) -> Lack | None:
        """Return a Lack if the site has no mpirun."""
        if program:
            return None
        hint = f"dlctl sites setup {site}, or launcher.executable in its file"
        return Lack("no mpirun; one learner needs none", hint, fatal=False)
