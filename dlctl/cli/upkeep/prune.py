"""`dlctl prune`: remove what ended long ago, and what nobody uses any more; asks first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.choosing import tell_failures
from dlctl.cli.common import (
    DRY_RUN,
    JSON,
    ago,
    ask_nothing_in_json,
    complete_sites,
    open_record,
    opened,
    seconds,
)
from dlctl.service.made import only_copies

if TYPE_CHECKING:
    from dlctl.errors import DlctlError
    from dlctl.record import RecordStore
    from dlctl.upkeep.prune import Prunable, Pruned

_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(prune)


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
                _print(name, going)
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
    from dlctl.units import format_bytes

    if output.agreed(f"remove {format_bytes(going.size_bytes)}?", "dlctl prune"):
        return True
    output.note("nothing was removed")
    return False


def _print(name: str, going: Prunable) -> None:
    from dlctl.units import counted, format_bytes

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
    from dlctl.units import counted, format_bytes

    for training_id, why in done.stays.items():
        output.warn(f"{training_id} stays: {why}")
    counts = {"training": len(done.trainings), "unused folder": len(done.unused),
              "cached folder": len(done.cached), "content": done.contents,
              "record": len(going.forgotten)}  # fmt: skip
    what = ", ".join(counted(count, noun) for noun, count in counts.items() if count)
    of = (" of " if going.keep_results else ": ") if what else ""
    output.line(f"{name}: removed {format_bytes(done.freed_bytes)}{of}{what}")
