"""`dlctl du`: what takes room at a site, the quota, and what could go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON, complete_sites, default_site, opened

if TYPE_CHECKING:
    from dlctl.upkeep.inventory import Inventory

_LARGEST = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(du)


def du(
    site: str | None = typer.Argument(
        None, metavar="SITE", autocompletion=complete_sites, show_default=False,
        help="The site; that of `dlctl config site`, or `local`.",
    ),
    all_: bool = typer.Option(False, "--all", help="List every training, not only the largest."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show what takes room at a site, how much is left, and what could go.

    Example: dlctl du mycluster
    """
    from dlctl.upkeep.inventory import take_inventory

    with opened(site or default_site()) as session:
        found = take_inventory(session, usage=True)
    output.report(_shown(found), as_json, lambda _: _print(found, all_))


def _shown(found: Inventory) -> dict[str, Any]:
    """Return the answer as `--json` prints it."""
    usage = found.usage
    states = {record.training_id: str(record.state) for record in found.records}
    return {
        "site": found.site, "root": found.root, "total_bytes": usage.total_bytes,
        "parts": dict(_parts(found)),
        "trainings": [
            {"training_id": name, "state": states.get(name), "size_bytes": parts.get("jobs", 0),
             "checkpoints_bytes": parts.get("checkpoints", 0),
             "results_bytes": parts.get("results", 0)}
            for name, parts in usage.trainings.items()
        ],
        "unused": usage.unused(), "disk_bytes": usage.disk_bytes, "free_bytes": usage.free_bytes,
        "inodes": usage.inodes, "free_inodes": usage.free_inodes, "quota": usage.quota,
    }  # fmt: skip


def _parts(found: Inventory) -> list[tuple[str, int]]:
    """Return what takes room, by what it is."""
    from dlctl.upkeep.usage import PARTS

    usage = found.usage
    large = {name: usage.all_of(name) for name in PARTS}
    folders = usage.folders
    rest = usage.all_of("jobs") - sum(large.values())
    of_trainings = [
        ("checkpoints", large["checkpoints"] + large["rehearsal"]), ("results", large["results"]),
        ("data of trainings", large["data"]), ("code of trainings", large["code"]),
        ("logs and metrics", max(0, rest)),
    ]  # fmt: skip
    shared = [
        ("runtimes", folders.get("runtime", 0)), ("sent folders", folders.get("store", 0)),
        ("the nodes' Python", folders.get("env", 0)),
        ("environments", folders.get("environments", 0)), ("cached data", folders.get("cache", 0)),
        ("stored models", folders.get("models", 0)),
        ("unfinished", folders.get("unfinished", 0)),
    ]  # fmt: skip
    return [(name, size) for name, size in (*of_trainings, *shared) if size]


def _print(found: Inventory, everything: bool) -> None:
    from dlctl.units import counted, format_bytes

    usage = found.usage
    if not usage.total_bytes:
        return output.note(f"there is nothing at {found.root} on {found.site} yet")
    rows = [[name, format_bytes(size)] for name, size in _parts(found)]
    output.table(["what", "size"], [*rows, ["all", format_bytes(usage.total_bytes)]])
    _print_trainings(found, everything)
    _print_room(found)
    if unused := usage.unused():
        size = format_bytes(sum(unused.values()))
        output.line(f"no training uses {counted(len(unused), 'folder')}, {size}")
    return output.hint(f"dlctl prune {found.site} --older-than 30d --dry-run")


def _print_trainings(found: Inventory, everything: bool) -> None:
    from dlctl.units import format_bytes

    usage = found.usage
    records = sorted(found.records, key=lambda r: usage.of(r.training_id), reverse=True)
    shown = records if everything else records[:_LARGEST]
    rows = [
        [r.training_id, str(r.state),
         *(format_bytes(usage.of(r.training_id, part)) for part in ("jobs", "checkpoints",
                                                                    "results"))]
        for r in shown
    ]  # fmt: skip
    if rows:
        output.line("")
        output.table(["training", "state", "size", "checkpoints", "results"], rows)
    if more := len(records) - len(shown):
        output.note(f"and {more} more: dlctl du {found.site} --all")
    for each in found.damaged:
        output.warn(f"{found.root}/jobs/{each.training_id}: {each.why}")
    output.line("")


def _print_room(found: Inventory) -> None:
    from dlctl.units import format_bytes

    usage = found.usage
    fields = {}
    if usage.free_bytes is not None and usage.disk_bytes:
        fields["room"] = (
            f"{format_bytes(usage.free_bytes)} of {format_bytes(usage.disk_bytes)} free"
        )
    if usage.free_inodes is not None and usage.inodes:
        fields["files"] = f"room for {usage.free_inodes:,} of {usage.inodes:,} more"
    fields["quota"] = "\n".join(usage.quota) or "the site tells none (`quota -w`)"
    output.fields(fields)
