"""Turn a plan into the batch script. Pure; everything goes through a shell-quote filter."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.resources import data_path
from dlctl.units import format_slurm_time

if TYPE_CHECKING:
    from jinja2 import Environment

MEBIBYTE = 1 << 20


def render(plan: contract.Plan) -> str:
    """Return the text of job.sbatch."""
    template = _environment().get_template("job.sbatch.j2")
    return template.render(plan=plan, options=sbatch_options(plan), contract=contract)


def sbatch_options(plan: contract.Plan) -> list[str]:
    """Return the `#SBATCH` options, one a line.

    Job name, comment, working directory and output depend on the attempt: they stand on the
    command line (`dlctl.scheduler.slurm`).
    """
    resources, batch = plan.resources, plan.batch
    chosen = {
        "nodes": resources.nodes,
        "ntasks": resources.learners,
        "ntasks-per-node": max(resources.learners_per_node),
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
    options = [f"--{name}={_word(value)}" for name, value in chosen.items() if value is not None]
    return [*options, "--no-requeue", "--open-mode=append", *(_word(e) for e in batch.extra)]


def _word(value: object) -> str:
    """Quote as sbatch reads its own lines: it knows quotes, but no shell expansion."""
    return shlex.quote(str(value))


def _mebibytes(memory_bytes: int | None) -> str | None:
    return None if memory_bytes is None else f"{-(-memory_bytes // MEBIBYTE)}M"


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - shell text, not HTML; the filter `sh` quotes
        loader=FileSystemLoader(data_path("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["comment"] = lambda value: " ".join(str(value).split())
    return environment
