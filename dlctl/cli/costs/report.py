"""The command report: where the hours of trainings went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.choosing import whole
from dlctl.cli.common import IDS, JSON, client

if TYPE_CHECKING:
    from dlctl.outputs.ledger import Ledger


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    training_ids: list[str] = IDS,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show where the hours of trainings went, what they cost, and what would have saved most.

    Example: dlctl report digits-3k9f
    """
    from dlctl.service.report import report as ledgers

    mine = client()
    many = ledgers(mine, mine.store.find_all(training_ids or []))
    output.report(whole(many), as_json, lambda _: _print(many))


def _print(many: list[Ledger]) -> None:
    for found in many:
        _print_one(found)


def _print_one(found: Ledger) -> None:
    from dlctl.outputs.ledger import USES, WORDS

    attempts = "1 attempt" if found.attempts == 1 else f"{found.attempts} attempts"
    output.sentence(f"{found.training_id}: {attempts}, {found.queued_h:.3g} h in the queue")
    rows = []
    for use in USES:
        share = found.node_hours_by_use[use] / found.node_hours if found.node_hours else 0.0
        rows.append([WORDS[use], f"{found.node_hours_by_use[use]:.4g}",
                     f"{found.gpu_hours_by_use[use]:.4g}", f"{100 * share:.1f} %"])  # fmt: skip
    rows.append(["all", f"{found.node_hours:.4g}", f"{found.gpu_hours:.4g}", ""])
    output.table(["use", "node-hours", "GPU-hours", "share"], rows)
    output.fields({
        "memory": _beside(_size(found.memory_asked_bytes), _size(found.memory_used_bytes)),
        "CPUs": _beside(str(found.cpus_asked),
                        "" if found.cpus_used is None else f"{found.cpus_used:.2g}"),
        "cost": "" if found.cost is None else f"{found.cost:.2f} {found.currency}".rstrip(),
        "advice": found.advice,
    })  # fmt: skip


def _beside(asked: str, used: str) -> str:
    return f"{asked or 'the default'} asked for, {used or 'unknown'} used"


def _size(size_bytes: int | None) -> str:
    from dlctl.series.readable import memory_size

    return "" if size_bytes is None else memory_size(size_bytes)
