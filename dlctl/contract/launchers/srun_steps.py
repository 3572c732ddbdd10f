"""Single steps of srun: one process each, on one node of a job, beside other steps."""

from __future__ import annotations

from collections.abc import Sequence

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
