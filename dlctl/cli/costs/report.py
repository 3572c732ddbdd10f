"""The command report: where the hours of trainings went."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import IDS, JSON, open_record, opened

if TYPE_CHECKING:
    from dlctl.outputs.ledger import Ledger
    from dlctl.record import Record


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
    records = open_record().find_all(training_ids or [])
    sites = dict.fromkeys(record.site for record in records)
    found: dict[str, Ledger] = {}
    for site in sites:
        found |= _of_site(site, [record for record in records if record.site == site])
    many = [found[record.training_id] for record in records]
    output.report(many if len(many) > 1 else many[0], as_json, lambda _: _print(many))


def _of_site(site: str, records: list[Record]) -> dict[str, Ledger]:
    from dlctl.lifecycle.accounts import accounts
    from dlctl.outputs.ledger import Prices, ledger

    with opened(site) as session:
        price = session.site.price
        prices = Prices(price.node_hour, price.gpu_hour, price.currency) if price else None
        return {
            training_id: ledger(training_id, attempts, prices, time.time())
            for training_id, attempts in accounts(session, records).items()
        }


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
