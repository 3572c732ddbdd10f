"""What the user may not expect of a training that is about to be submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlctl.contract.programs.lone_program import saves_beside_itself, warn_if_alone
from dlctl.request.left_out import listing, rows
from dlctl.tell import Tell
from dlctl.units import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from dlctl.contract import Plan
    from dlctl.request.bundle import Bundle


STARTED = {
    "in_allocation": "on the nodes that the job has",
    "job": "submitted by the ending job",
    "successor": "started by a job that was submitted beforehand",
    "requeue": "requeued by Slurm",
    "client": "started by the next dlctl command that asks the site",
}
"""How the next attempt comes about, by its `StarterKind`."""


def tell_plan(plan: Plan, manifest: Path, model: str | None, tell: Tell) -> None:
    """Say what a plan lacks, how many jobs it takes, and which models it uses."""
    for note in plan.not_in_this_version:
        tell.warn(note)
    _say_links(plan, tell)
    _say_models(plan, tell)
    _say_where_files_will_be(plan, manifest, model, tell)
    if not model:
        folder = manifest.resolve().parent
        tell.warn(warn_if_alone(plan.framework.command, plan.resources.learners, folder))


def _say_where_files_will_be(plan: Plan, manifest: Path, model: str | None, tell: Tell) -> None:
    """Say where the files of a program will be found that seems to save beside itself."""
    framework = plan.framework
    if model or framework.has_loop:
        return
    script = framework.recipe.script if framework.recipe else ""
    if saves_beside_itself([framework.command or "", script], manifest.parent):
        tell.note(
            "the program names neither RESULT_DIR nor CHECKPOINT_DIR: what it writes into its own "
            "folder counts as its output, which `dlctl fetch` brings"
        )


def tell_files(code: Bundle, tell: Tell) -> None:
    """Name each file that is sent, and each that is not, a line each."""
    for path, size, rule in rows(listing(code)):
        tell.note(f"{size:>8}  {path}" + (f"  left out by {rule}" if rule != "-" else ""))


def _say_models(plan: Plan, tell: Tell) -> None:
    """Say which versions of stored models a training uses: an alias may move."""
    if plan.model:
        tell.note(f"trains {plan.model}")
    if plan.weights:
        tell.note(f"starts from {plan.weights.path} of {plan.weights.model}")


def _say_links(plan: Plan, tell: Tell) -> None:
    """Say how many jobs a training takes that is longer than its partition allows."""
    links, each_s = plan.lifecycle.links if plan.lifecycle else 1, plan.resources.time_s
    if plan.lifecycle and links > 1 and each_s is not None:
        elsewhere = [each for each in plan.lifecycle.starters if each != "in_allocation"]
        where = f"the partition {plan.batch.partition}" if plan.batch.partition else "this site"
        tell.note(
            f"{where} allows {format_duration(each_s)} a job: a chain of about {links} jobs, the "
            f"next one {STARTED[elsewhere[0] if elsewhere else 'client']}"
        )
