"""Commands about a training's cost: `suggest` and `rehearse` before, `report` while it runs."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    IDS,
    JSON,
    NOTHING,
    SITE,
    client,
    filtered,
    moment,
    opened,
    overriding,
    seconds,
    whole,
)
from dlctl.cli.manifests import MANIFEST
from dlctl.units import counted, format_bytes, format_span

if TYPE_CHECKING:
    from dlctl.contract import Rehearsed
    from dlctl.manifest.overrides import Overrides
    from dlctl.outputs.ledger import Ledger, Sum
    from dlctl.record import Record
    from dlctl.service.client import Filter
    from dlctl.service.costs import Rehearsal
    from dlctl.service.suggest import Suggestions

_NAMES_WIDTH = 64


def suggest(
    manifest: Path = MANIFEST, site: str = SITE,
    write: bool = typer.Option(
        False, "--write", help="Change the manifest in place, and show the difference."
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Suggest resources from what earlier trainings used.

    It looks at those of the same name or code. Each suggestion shows what it rests on.

    Example: dlctl suggest manifest.yml --site mycluster --write
    """
    from dlctl.service.suggest import suggest as suggestions

    found = suggestions(client(), manifest, site, write=write)
    for name, why in found.unanswered.items():
        output.warn(f"{name}: {why}; what is known of its trainings counts all the same")
    output.report(found, as_json, _print_suggestions)
    if write and not found.difference:
        output.note(f"{manifest} stays as it is")
    if not as_json and not write and any(each.is_change for each in found.suggestions):
        output.hint(f"dlctl suggest {shlex.quote(str(manifest))} --site {found.site} --write")


@overriding("time")
def rehearse(
    manifest: Path = MANIFEST, site: str = SITE,
    steps: int = typer.Option(20, "--steps", min=3, help="How many steps to train."),
    limit: str = typer.Option("15m", "--limit", help="The time limit of the rehearsal's job."),
    *, overrides: Overrides,
    keep: bool = typer.Option(False, "--keep", help="Keep the rehearsal's job directory."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Try a restart in a short job, and forecast the cost.

    It trains some steps undisturbed, then again, halted after a third of them and killed after
    two thirds, and compares the two checkpoints. Exit code 10 if they differ.

    Example: dlctl rehearse manifest.yml --site mycluster
    """
    from dlctl.service import costs

    limit_s, mine = seconds(limit, "--limit"), client()
    with opened(site) as session:
        try:
            found = costs.rehearse(session, mine.store, manifest, overrides, steps, limit_s,
                                   mine.tell, keep=keep)  # fmt: skip
        except KeyboardInterrupt as stop:
            if not stop.args:
                raise
            sentence = f"stopped waiting; the rehearsal goes on as {stop.args[0]}"
            raise output.interrupted(sentence, f"dlctl cancel {stop.args[0]}") from None
    output.report(found, as_json, _print)
    if not found.rehearsed.equal:
        from dlctl.errors import TrainingFailed

        raise TrainingFailed(
            "a restart doesn't continue this training as if nothing had happened",
            hint=f"`dlctl checkpoints list {found.training_id}`; random numbers that your program "
            "draws from generators of its own, or a GPU's order of additions, may be the cause",
        )


# What people read ---------------------------------------------------------------------------------


def _print_suggestions(found: Suggestions) -> None:
    if not found.trainings:
        output.sentence("no earlier training of this name, code or file is known: train a small "
                        "one, or take over those of a site: dlctl adopt SITE")  # fmt: skip
    rows = [[each.key, each.asked or "-", each.suggested or "-", each.evidence]
            for each in found.suggestions if found.trainings]  # fmt: skip
    output.table(["key", "asked", "suggested", "evidence"], rows)
    output.sentence(f"start: {found.start.sentence}")
    output.document(found.difference)


def _print(shown: Rehearsal) -> None:
    from dlctl.series.readable import exact_span, memory_size

    found, whole, requested_bytes = shown.rehearsed, shown.forecast, shown.memory_asked_bytes
    fields = {
        "restarts": _restarts(found), "differing": _differing(found),
        "disturbed": f"halted at step {found.halted_at}, killed after step {found.killed_at} "
                     f"of {found.steps}",
    }  # fmt: skip
    if found.restart_s is not None:
        fields["restart"] = f"{found.restart_s:.1f} s from the kill to the next step"
    if found.checkpoint_s is not None:
        size = "" if found.checkpoint_bytes is None else f", {format_bytes(found.checkpoint_bytes)}"
        fields["checkpoint"] = f"{found.checkpoint_s:.2g} s{size}"
    if found.memory_bytes is not None:
        wanted = memory_size(requested_bytes) if requested_bytes else "the default"
        used = memory_size(found.memory_bytes)
        fields["memory"] = f"{used} used, {wanted} asked for, per learner"
    if found.step_s:
        fields["speed"] = f"{found.samples_per_s:.4g} samples a second, {found.step_s:.3g} s a step"
    if whole is not None:
        gpus = f", {_held(whole.gpu_hours)} of GPUs" if whole.gpu_hours else ""
        fields["training"] = (
            f"{found.total_steps} steps: {exact_span(3600 * whole.hours)} in "
            f"{counted(whole.links, 'job')}, {_held(whole.node_hours)} of nodes{gpus}"
        )
    if whole is not None and whole.asked_hours is not None:
        verdict = "is enough" if whole.asked_hours >= whole.hours else "is NOT enough"
        span = exact_span(3600 * whole.asked_hours)
        fields["time"] = f"{span} {verdict}, not counting validation"
    output.fields(fields)


def _restarts(found: Rehearsed) -> str:
    if found.equal:
        return "bit for bit"
    count, by = len(found.differing), found.largest_difference
    what = "1 part of the state differs" if count == 1 else f"{count} parts of the state differ"
    return f"NOT bit for bit: {what}" + ("" if by is None else f", by at most {by:.3g}")


def _differing(found: Rehearsed) -> str:
    """Return the first names that fit into a line."""
    shown: list[str] = []
    for name in found.differing:
        if shown and len(", ".join([*shown, name])) > _NAMES_WIDTH:
            return f"{', '.join(shown)} …"
        shown.append(name)
    return ", ".join(shown)


@filtered
def report(
    training_ids: list[str] = IDS, *, wanted: Filter,
    since: str | None = typer.Option(
        None, "--since", metavar="AGE|TIME", help="All trainings submitted since then: 7d, or "
        "2026-01-31."
    ),
    by: str | None = typer.Option(
        None, "--by", metavar="WORD", help="Only the sums: by tag, state, site or name."
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show where the hours of trainings went.

    It tells what they cost, and what would have saved most. Of several trainings it prints a row
    each, and the sums.

    Example: dlctl report --tag rates --since 30d
    """
    from dlctl.service import costs
    from dlctl.service.client import chosen

    mine = client()
    wanted = replace(wanted, since_at=None if since is None else moment(since, "--since"))
    found = costs.report(mine, chosen(mine.store, training_ids, wanted))
    if by is not None:
        groups = costs.sums(found, by)
        return output.report(groups, as_json, lambda _: _print_sums(by, groups, found))
    books = [book for _, book in found]
    return output.report(whole(books), as_json, lambda _: _print_books(found))


_SUMS = ("queued", "node time", "GPU time", "CPU time", "useful", "GPU energy", "cost")


_SUMS_WIDTH = 62
"""The columns of the state and of the sums, of trainings without GPUs."""


def _print_books(found: list[tuple[Record, Ledger]]) -> None:
    if len(found) == 1:
        return _print_ledger(*found[0])
    from dlctl.outputs.ledger import summed
    from dlctl.terminal.text import shortened

    room = output.columns(1000) - _SUMS_WIDTH
    rows = [[shortened(record.training_id, max(20, room)), str(record.state),
             *_sum_row(summed("", [book]))] for record, book in found]  # fmt: skip
    total = [counted(len(found), "training"), "", *_sum_row(summed("", [b for _, b in found]))]
    return _print_rows(["training", "state", *_SUMS], [*rows, total] if rows else [])


def _print_sums(by: str, groups: list[Sum], found: list[tuple[Record, Ledger]]) -> None:
    from dlctl.outputs.ledger import summed

    total = summed("all", [book for _, book in found])
    rows = [[each.key, str(each.trainings), *_sum_row(each)] for each in [*groups, total]]
    _print_rows([by, "trainings", *_SUMS], rows if found else [])


def _print_rows(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table without the columns that hold nothing."""
    kept = [i for i in range(len(columns)) if not rows or any(row[i] != "-" for row in rows)]
    output.table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], NOTHING)
    output.note("useful: the share of the node time" if rows and "useful" in columns else "")


def _sum_row(found: Sum) -> list[str]:
    energy_kwh = found.gpu_energy_kwh
    return [
        _held(found.queued_h), _held(found.node_hours), _held(found.gpu_hours),
        _held(found.cpu_hours),
        "-" if found.useful_share is None else f"{100 * found.useful_share:.0f} %",
        "-" if energy_kwh is None else f"{energy_kwh:.3g} kWh", _cost(found) or "-",
    ]  # fmt: skip


def _held(hours: float) -> str:
    from dlctl.series.readable import held_span

    return held_span(3600 * hours) if hours else "-"


def _cost(found: Sum | Ledger) -> str:
    return "" if found.cost is None else f"{found.cost:.2f} {found.currency}".rstrip()


def _print_ledger(record: Record, found: Ledger) -> None:
    from dlctl.contract.metrics import STEP_PARTS
    from dlctl.outputs.ledger import PARTS, USES, WORDS
    from dlctl.series.readable import exact_span
    from dlctl.series.utilisation import percent

    elapsed_s = record.elapsed_s(time.time())
    ran = "" if elapsed_s is None else f", ran {exact_span(round(elapsed_s))}"
    output.sentence(f"{found.training_id}: {record.state_in_words}, "
                    f"{counted(found.attempts, 'attempt')}{ran}, "
                    f"{format_span(3600 * found.queued_h)} in the queue")  # fmt: skip
    rows = []
    for use in USES if found.node_hours else ():
        share = found.node_hours_by_use[use] / found.node_hours
        of_step = found.step_shares.get(STEP_PARTS.get(PARTS.get(use, ""), ""))
        rows.append([WORDS[use], _held(found.node_hours_by_use[use]),
                     _held(found.gpu_hours_by_use[use]), f"{100 * share:.1f} %",
                     "-" if of_step is None else percent(of_step)])  # fmt: skip
    if rows:
        rows.append(["all", _held(found.node_hours), _held(found.gpu_hours), "100 %", "-"])
        _print_rows(["use", "node time", "GPU time", "of the node time", "of a step's time"], rows)
    for sentence in found.utilisation:
        output.sentence(sentence)
    energy_kwh = found.gpu_energy_kwh
    output.fields({
        "GPU energy": "" if energy_kwh is None else f"{energy_kwh:.3g} kWh",
        "cost": _cost(found), "advice": found.advice,
    })  # fmt: skip
