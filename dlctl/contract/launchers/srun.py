"""Slurm's srun: all learners are tasks of one job step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlctl.contract.launchers.base import (
    Lack,
    Launcher,
    LaunchError,
    LaunchRequest,
    Ranks,
    SrunSteps,
    number,
)

if TYPE_CHECKING:
    from dlctl.contract.plan import Resources


class Srun(Launcher):
    """Starts one task for each learner."""

    kind = "srun"
    for_sites = True
    starts_mpi = True
    scheduler = "slurm"
    environment: Mapping[str, str] = MappingProxyType({"SLURM_EXPORT_ENV": "ALL"})
    """A job that was submitted with --export=NONE would pass that setting on."""
    prefixes: tuple[str, ...] = ("SLURM_", "SBATCH_")
    allocation: tuple[str, ...] = (
        "SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
        "SLURM_CLUSTER_NAME",
    )  # fmt: skip
    tasks_variable = "SLURM_STEP_NUM_TASKS"
    gpus_variable = "SLURM_STEP_GPUS"
    ended_grace_s = 20.0
    """Slurm's KillWait is 30 s."""
    end = re.compile(r": tasks? (\d[\d,-]*): (?!Completed)[A-Z]")
    stop = re.compile(r"Terminating (?:StepId|job step)|Job step aborted|\*\*\* STEP ")
    killed = re.compile(r": tasks? \d[\d,-]*: Killed$")
    waited = re.compile(r"Timed out waiting for job step to complete")
    rest = re.compile(r"First task exited \d+s ago|mpi/pmix.* Error handler invoked: .*:(\d+)\]")

    def argv(self, request: LaunchRequest) -> list[str]:
        """Return srun with the shape of the step; one learner's end ends the step."""
        mpi = [f"--mpi={request.mpi}"] if request.mpi else []
        shape = [
            f"--nodes={request.nodes}",
            f"--ntasks={request.learners}",
            f"--cpus-per-task={request.cpus_per_learner}",
        ]
        return [request.executable or self.kind, *mpi, *shape, "--kill-on-bad-exit=1",
                *request.extra]  # fmt: skip

    def steps(self, program: str, extra: Sequence[str]) -> SrunSteps:
        """Return steps of one process each."""
        return SrunSteps(program, extra)

    def sharing(self, argv: Sequence[str], memory_bytes: int | None) -> list[str]:
        """Give the step CPUs of its own, and a share of the memory."""
        share = [] if memory_bytes is None else [f"--mem={memory_bytes >> 20}M"]
        return [*argv, "--exact", *share] if argv else []

    def reshaped(self, argv: Sequence[str], learners_on: Mapping[str, int]) -> list[str]:
        """Return srun with another shape, on these nodes of the job."""
        old = ("--nodes=", "--ntasks=", "--nodelist=")
        program, *options = (word for word in argv if not word.startswith(old))
        shape = [
            f"--nodes={len(learners_on)}", f"--ntasks={sum(learners_on.values())}",
            f"--nodelist={','.join(learners_on)}",
        ]  # fmt: skip
        # The step before may not end on the lost node, and still holds CPUs of the others.
        return [program, *shape, "--overlap", *options]

    def ranks(self, env: Mapping[str, str], resources: Resources) -> Ranks:  # noqa: ARG002
        """Read SLURM_PROCID and its like."""
        rank = number(env, "SLURM_PROCID")
        size = number(env, "SLURM_NTASKS", "SLURM_NPROCS")
        if rank is None or size is None:
            raise LaunchError(
                "srun set no SLURM_PROCID and SLURM_NTASKS for the learners.",
                hint="Check `launcher` in the site file: its argv has to start with srun.",
            )
        node = number(env, "SLURM_NODEID") or 0
        tasks = tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        local_size = tasks[node] if node < len(tasks) else size
        return Ranks(rank, size, number(env, "SLURM_LOCALID") or 0, local_size, node)

    def pmi_hint(self, site: str) -> str:
        """Return the PMI types to choose from."""
        return (
            "srun and the MPI library speak different PMIs; set `launcher.mpi` in the site "
            f"file of {site} to a type that `srun --mpi=list` shows there (pmix for OpenMPI, "
            "pmi2 for MPICH), or use mpirun."
        )

    def lack(
        self,
        request: LaunchRequest,
        mpi_types: Sequence[str],
        program: str,  # noqa: ARG002
        site: str,  # noqa: ARG002
    ) -> Lack | None:
        """Return a Lack if this Slurm does not know the PMI type."""
        if not request.mpi or not mpi_types or request.mpi in mpi_types:
            return None
        hint = f"set launcher.mpi to one of {', '.join(mpi_types)}"
        return Lack(f"srun has no --mpi={request.mpi}", hint, fatal=True)


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks on each node from Slurm's words, e.g. `2(x3),1` → [2, 2, 2, 1]."""
    found: list[int] = []
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        found += [int(count)] * int(repeat or 1)
    return found
