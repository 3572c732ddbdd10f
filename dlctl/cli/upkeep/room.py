"""What a site holds: `du` shows it, `prune` removes it, `adopt` puts it into the local record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    DRY_RUN,
    JSON,
    ago,
    ask_nothing_in_json,
    complete_sites,
    default_site,
    open_record,
    opened,
    seconds,
    tell_failures,
)
from dlctl.service.describe import only_copies
from dlctl.units import counted, format_bytes

if TYPE_CHECKING:
    from dlctl.errors import DlctlError
    from dlctl.record import RecordStore
    from dlctl.upkeep.inventory import Adopted, Inventory
    from dlctl.upkeep.prune import Prunable, Pruned

_LARGEST, _SHOWN = 10, 20


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
    output.report(_usage(found), as_json, lambda _: _print_usage(found, all_))


def _usage(found: Inventory) -> dict[str, Any]:
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


def _print_usage(found: Inventory, everything: bool) -> None:
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


def prune(
    site: str | None = typer.Argument(
        None, metavar="SITE", autocompletion=complete_sites, show_default=False,
        help="The site; by default each that has trainings of yours.",
    ),
    older_than: str = typer.Option("30d", "--older-than", metavar="TIME",
                                   help="For how long a training must have ended."),
    keep_results: bool = typer.Option(False, "--keep-results", help="Remove only checkpoints and "
                                      "copies of data; results, logs and metrics stay."),
    dry_run: bool = DRY_RUN,
    yes: bool = typer.Option(False, "--yes", "-y", help="Don't ask; required without a terminal."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Remove trainings that ended long ago, and what no training at the site uses any more.

    A training that may still run or go on stays.

    Example: dlctl prune mycluster --older-than 30d --keep-results
    """
    ask_nothing_in_json(as_json, answered=yes or dry_run)
    older_than_s, store = seconds(older_than, "--older-than"), open_record()
    sites = [site] if site else sorted({record.site for record in store.all()}) or ["local"]
    shown = []
    failures: list[DlctlError] = []
    for name in sites:
        told, failure = _at(name, store, older_than_s, keep_results,
                            asks=not yes, dry_run=dry_run, as_json=as_json)  # fmt: skip
        shown += [told] if told else []
        failures += [failure] if failure else []
    if as_json:
        output.report(shown, as_json, lambda _: None)
    tell_failures(failures)


def _at(
    name: str, store: RecordStore, older_than_s: int, keep_results: bool, *,
    asks: bool, dry_run: bool, as_json: bool,
) -> tuple[dict[str, Any] | None, DlctlError | None]:  # fmt: skip
    """Prune one site; return what became of it, or why it could not be done."""
    from dlctl.errors import DlctlError
    from dlctl.outputs.metrics.cache import forget
    from dlctl.upkeep.prune import look
    from dlctl.upkeep.prune import prune as remove

    try:
        with opened(name) as session:
            going = look(session, store, older_than_s, keep_results=keep_results)
            done = None
            if not as_json:
                _print_going(name, going)
            if going and not dry_run and (not asks or _confirmed(going)):
                done = remove(session, store, going)
                for training_id in [] if keep_results else done.trainings:
                    forget(training_id)
                if not as_json:
                    _print_done(name, going, done)
            return _shown(name, going, done), None
    except DlctlError as error:
        return None, error


def _shown(name: str, going: Prunable, done: Pruned | None) -> dict[str, Any]:
    """Return the answer as `--json` prints it."""
    return {
        "site": name, "keeps_results": going.keep_results,
        "trainings": [{"training_id": each.record.training_id, "state": str(each.record.state),
                       "ended_at": each.ended_at, "size_bytes": each.size_bytes}
                      for each in going.trainings],
        "forgotten": [record.training_id for record in going.forgotten],
        "unused": going.unused, "cached": going.cached, "contents": going.contents,
        "size_bytes": going.size_bytes, "removed": done,
    }  # fmt: skip


def _confirmed(going: Prunable) -> bool:
    """Ask at the terminal.

    Raises:
        typer.BadParameter: there is none.
    """
    if output.agreed(f"remove {format_bytes(going.size_bytes)}?", "dlctl prune"):
        return True
    output.note("nothing was removed")
    return False


def _print_going(name: str, going: Prunable) -> None:
    rows = [[each.record.training_id, str(each.record.state), ago(time.time() - each.ended_at),
             format_bytes(each.size_bytes)] for each in going.trainings]  # fmt: skip
    rows += [[unused, "unused", "", format_bytes(size)] for unused, size in going.unused.items()]
    rows += [[f"{each.endpoint}/{each.container}", "cached", ago(time.time() - each.used_at),
              format_bytes(each.size_bytes)] for each in going.cached]  # fmt: skip
    if going.contents and going.contents.blobs:
        rows.append([counted(going.contents.blobs, "content"), "unused", "",
                     format_bytes(going.contents.size_bytes)])  # fmt: skip
    rows += [[record.training_id, f"{record.state}, gone from the site", "", "record only"]
             for record in going.forgotten]  # fmt: skip
    for each in going.inventory.damaged:
        output.warn(f"stays: {going.inventory.root}/jobs/{each.training_id}: {each.why}; so does "
                    "all that trainings share")  # fmt: skip
    output.warn(f"{name}: the cache can't be asked: {going.problem}" if going.problem else "")
    among = () if going.keep_results else ("results", "output")
    for going_one in going.trainings:
        if only := only_copies(going_one.record, (*among, "checkpoints")):
            output.warn(f"{going_one.record.training_id}: NOT fetched: {only}")
    if not rows:
        return output.note(f"nothing on {name} may go")
    output.table(["what", "state", "ended", "size"], rows[:_SHOWN])
    more = len(rows) - _SHOWN
    rest = f", and {more} more" if more > 0 else ""
    what = "; results, logs and metrics stay" if going.keep_results else ""
    return output.note(f"{format_bytes(going.size_bytes)} on {name}{rest}{what}")


def _print_done(name: str, going: Prunable, done: Pruned) -> None:
    for training_id, why in done.stays.items():
        output.warn(f"{training_id} stays: {why}")
    counts = {"training": len(done.trainings), "unused folder": len(done.unused),
              "cached folder": len(done.cached), "content": done.contents,
              "record": len(going.forgotten)}  # fmt: skip
    what = ", ".join(counted(count, noun) for noun, count in counts.items() if count)
    of = (" of " if going.keep_results else ": ") if what else ""
    output.line(f"{name}: removed {format_bytes(done.freed_bytes)}{of}{what}")


def adopt(
    site: str = typer.Argument(..., metavar="SITE", help="The site.",
                               autocompletion=complete_sites),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Rebuild the local record from a site's job directories: on another laptop, or after a loss.

    What the record has already stays as it is. A record that is damaged is kept beside the new one.

    Example: dlctl adopt mycluster
    """
    from dlctl.upkeep.inventory import adopt as take_over

    store = open_record()
    with opened(site) as session:
        if aside := store.repair():
            output.warn(
                f"the local record was damaged; it is kept as {aside.kept_as}, and "
                f"{aside.saved} of its trainings were saved: adopt each of your sites"
            )
        found = take_over(session, store)
    for each in found.damaged:
        output.warn(f"left out {found.root}/jobs/{each.training_id}: {each.why}")
    shown = {
        "site": found.site,
        "added": found.added,
        "known": found.known,
        "damaged": [{"training_id": d.training_id, "why": d.why} for d in found.damaged],
    }
    output.report(shown, as_json, lambda _: _print_adopted(found))


def _print_adopted(found: Adopted) -> None:
    rows = [[each.training_id, each.created_at[:10], str(each.attempt), str(each.state)]
            for each in reversed(found.added)]  # fmt: skip
    if rows:
        output.table(["training", "created", "attempt", "state"], rows)
    known = f"; {len(found.known)} known already" if found.known else ""
    output.note(f"adopted {counted(len(rows), 'training')} of {found.site}{known}")
    for each in found.added:
        if only := only_copies(each):
            output.warn(f"{each.training_id}: not fetched to this machine: {only}")
    if rows:
        output.hint(f"dlctl list --site {found.site}")
