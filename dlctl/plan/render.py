"""Turn a plan into the batch script. Pure; everything goes through a shell-quote filter."""

from __future__ import annotations

import shlex

from dlctl import contract
from dlctl.errors import PlanError
from dlctl.script_templates import render_script
from dlctl.units import format_slurm_time

MEBIBYTE = 1 << 20


def render(plan: contract.Plan) -> str:
    """Return the text of job.sbatch."""
    return render_script("job.sbatch.j2", plan=plan, options=sbatch_options(plan))


def sbatch_options(plan: contract.Plan) -> list[str]:
    """Return the `#SBATCH` options, one per line.

    Job name, comment, working directory and output depend on the attempt, so they are on the
    command line (`dlctl.scheduler.slurm`).
    """
    resources, batch = plan.resources, plan.batch
    fullest = max(resources.learners_per_node)
    chosen = {
        "nodes": resources.nodes + resources.spare_nodes,
        "ntasks": resources.learners + resources.spare_nodes * fullest,
        "ntasks-per-node": fullest,
        "cpus-per-task": resources.cpus_per_learner,
        "mem": _mebibytes(resources.memory_bytes_per_node),
        "time": None if resources.time_s is None else format_slurm_time(resources.time_s),
        "partition": batch.partition,
        "account": batch.account,
        "qos": batch.qos,
        "constraint": batch.constraint,
        "gres": batch.gres,
        "signal": f"B:USR2@{resources.halt_margin_s}",
    }
    chosen |= _mails(plan.notify)
    given = {name: value for name, value in chosen.items() if value is not None}
    options = [f"--{name}={_word(name, value)}" for name, value in given.items()]
    extra = [_word("extra", option) for option in batch.extra]
    # Learners without a common MPI world may continue without a lost node.
    spared = ["--no-kill"] if plan.parameter_server or _goes_on_with_fewer(plan) else []
    return [*options, _requeue(plan), *spared, "--open-mode=append", *extra]


def _goes_on_with_fewer(plan: contract.Plan) -> bool:
    least = plan.lifecycle.min_learners if plan.lifecycle else None
    return least is not None and plan.resources.nodes > 1 and least < plan.resources.learners


def _requeue(plan: contract.Plan) -> str:
    """Return whether Slurm runs the job again after its node was lost: as the next attempt.

    The processes of the attempt before, which may still run, can publish nothing more.
    """
    allowed = plan.lifecycle is not None and contract.StarterKind.REQUEUE in plan.lifecycle.starters
    return "--requeue" if allowed else "--no-requeue"


def _mails(notify: contract.Notify | None) -> dict[str, str]:
    """Return the options by which Slurm sends mails, if there is no other server for them."""
    if notify is None or notify.email is None or notify.smtp is not None:
        return {}
    kinds = {"started": "BEGIN", "failed": "FAIL", "finished": "END", "plateau": "END"}
    types = dict.fromkeys(kinds[event] for event in notify.on)
    return {"mail-user": notify.email, "mail-type": ",".join(types)}


def _word(name: str, value: object) -> str:
    """Quote for sbatch, which reads its own lines with quotes but without shell expansion.

    Raises:
        PlanError: a line break or other control character, which can't be quoted on one line.
    """
    text = str(value)
    if not text.isprintable():
        raise PlanError(
            f"the sbatch option {name} contains a control character: {text!r}",
            hint="write it on one line, in the manifest's scheduler section or the site's file",
        )
    return shlex.quote(text)


def _mebibytes(memory_bytes: int | None) -> str | None:
    return None if memory_bytes is None else f"{-(-memory_bytes // MEBIBYTE)}M"
