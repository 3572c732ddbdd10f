"""Turn a plan into the batch script. Pure; everything goes through a shell-quote filter."""

from __future__ import annotations

from dlctl import contract
from dlctl.contract import search
from dlctl.scheduler import scheduler_class
from dlctl.script_templates import render_script


def render(plan: contract.Plan) -> str:
    """Return the text of job.sbatch."""
    return render_script("job.sbatch.j2", plan=plan, header=header(plan), search=search)


def header(plan: contract.Plan) -> list[str]:
    """Return the lines at the top of a batch script in which the scheduler reads its options."""
    lines: list[str] = scheduler_class(plan.batch.scheduler).header(plan)
    return lines
