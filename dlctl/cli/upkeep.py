"""Upkeep: what a site holds (`du`, `prune`, `adopt`), the user's settings, and the schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    DRY_RUN,
    JSON,
    YES,
    ago,
    ask_nothing_in_json,
    client,
    complete_sites,
    default_site,
    opened,
    seconds,
    tell_failures,
)
from dlctl.errors import DlctlError
from dlctl.service.describe import only_copies
from dlctl.units import counted, format_bytes

if TYPE_CHECKING:
    from dlctl.upkeep.inventory import Adopted
    from dlctl.upkeep.prune import Prunable
    from dlctl.upkeep.usage import Room

_LARGEST, _SHOWN = 10, 20


def du(
    site: str | None = typer.Argument(
        None, metavar="SITE", autocompletion=complete_sites, show_default=False,
        help="The site; that of `dlctl config site`, or `local`.",
    ),
    all_: bool = typer.Option(False, "--all", help="List every training, not only the largest."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show what takes room at a site, and what could go.

    Example: dlctl du mycluster
    """
    from dlctl.upkeep.inventory import room

    with opened(site or default_site()) as session:
        found = room(session, output.Shown())
    output.report(found, as_json, lambda _: _print_room(found, all_))


def _print_room(found: Room, everything: bool) -> None:
    if not found.total_bytes:
        return output.note(f"there is nothing at {found.root} on {found.site} yet")
    rows = [[name, format_bytes(size)] for name, size in found.parts.items()]
    output.table(["what", "size"], [*rows, ["all", format_bytes(found.total_bytes)]])
    known = sorted((t for t in found.trainings if t.state), key=lambda t: -t.size_bytes)
    rows = [[t.training_id, str(t.state), format_bytes(t.size_bytes),
             format_bytes(t.checkpoints_bytes), format_bytes(t.results_bytes)]
            for t in (known if everything else known[:_LARGEST])]  # fmt: skip
    if rows:
        output.line()
        output.table(["training", "state", "size", "checkpoints", "results"], rows)
    if more := len(known) - len(rows):
        output.note(f"and {more} more: dlctl du {found.site} --all")
    output.line()
    free, files, disk = found.free_bytes, found.free_inodes, found.disk_bytes
    is_known = free is not None and disk
    output.fields({
        "room": f"{format_bytes(free or 0)} of {format_bytes(disk or 0)} free" if is_known else "",
        "files": "" if files is None else f"room for {files:,} of {found.inodes or 0:,} more",
        "quota": "\n".join(found.quota) or "the site tells none (`quota -w`)",
    })  # fmt: skip
    if found.unused:
        size = format_bytes(sum(found.unused.values()))
        output.line(f"no training uses {counted(len(found.unused), 'folder')}, {size}")
    return output.hint(f"dlctl prune {found.site} --older-than 30d --dry-run")


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
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Remove trainings that ended long ago; asks first.

    It also removes what no training at the site uses any more. A training that may still run or go
    on stays.

    Example: dlctl prune mycluster --older-than 30d --keep-results
    """
    from dlctl.upkeep.prune import prune as remove

    ask_nothing_in_json(as_json, answered=yes or dry_run)
    older_than_s, store = seconds(older_than, "--older-than"), client().store
    sites = [site] if site else sorted({record.site for record in store.all()}) or ["local"]
    done: list[Prunable] = []
    failures: list[DlctlError] = []

    def agreed(going: Prunable) -> bool:
        if not as_json:
            _print_going(going)
        question = f"remove {format_bytes(going.size_bytes)}?"
        return bool(going) and not dry_run and (
            yes or output.agreed(question, "dlctl prune", "removed"))  # fmt: skip

    for name in sites:
        try:
            with opened(name) as session:
                done.append(remove(session, store, older_than_s, keep_results, agreed))
        except DlctlError as error:
            failures.append(error)
            continue
        if not as_json:
            _print_done(done[-1])
    if as_json:
        output.report(done, True, print)
    tell_failures(failures)


def _print_going(going: Prunable) -> None:
    name = going.inventory.site
    now = going.inventory.now
    rows = [[each.record.training_id, str(each.record.state), ago(now - each.ended_at),
             format_bytes(each.size_bytes)] for each in going.trainings]  # fmt: skip
    rows += [[unused, "unused", "", format_bytes(size)] for unused, size in going.unused.items()]
    rows += [[f"{each.endpoint}/{each.container}", "cached", ago(now - each.used_at),
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


def _print_done(going: Prunable) -> None:
    if (done := going.removed) is None:
        return
    for training_id, why in done.stays.items():
        output.warn(f"{training_id} stays: {why}")
    counts = {"training": len(done.trainings), "unused folder": len(done.unused),
              "cached folder": len(done.cached), "content": done.contents,
              "record": len(going.forgotten)}  # fmt: skip
    what = ", ".join(counted(count, noun) for noun, count in counts.items() if count)
    of = (" of " if going.keep_results else ": ") if what else ""
    output.line(f"{going.inventory.site}: removed {format_bytes(done.freed_bytes)}{of}{what}")


def adopt(
    site: str = typer.Argument(..., metavar="SITE", help="The site.",
                               autocompletion=complete_sites),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Rebuild the local record from a site's directories.

    It is for another laptop, or after a loss. What the record has already stays as it is. A record
    that is damaged is kept beside the new one.

    Example: dlctl adopt mycluster
    """
    from dlctl.upkeep.inventory import adopt as take_over

    with opened(site) as session:
        found = take_over(session, client().store, output.Shown())
    output.report(found, as_json, _print_adopted)


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


def complete_settings(incomplete: str) -> list[str]:
    """Return the settings with this beginning, for shell completion."""
    from dlctl.settings import SETTINGS

    return [name for name in SETTINGS if name.startswith(incomplete)]


NAME = typer.Argument(None, metavar="NAME", autocompletion=complete_settings,
                      show_default=False, help="A setting; all by default.")  # fmt: skip
VALUE = typer.Argument(None, metavar="VALUE", show_default=False, help="Its new value.")


def config(
    name: str | None = NAME, value: str | None = VALUE,
    unset: bool = typer.Option(False, "--unset", help="Take the setting away."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show your settings and their sources, or change one.

    Example: dlctl config site mycluster
    """
    from dlctl.settings import SETTINGS, change, setting

    if (value is not None or unset) and name is None:
        raise typer.BadParameter("name the setting that is to change")
    if value is not None and unset:
        raise typer.BadParameter("either a value or --unset")
    if name is not None and (unset or value is not None):
        if name == "site" and value is not None:
            from dlctl.sites.files import find_site

            find_site(value)  # refuses a name that is no site's
        change(name, value)
    known = {each: setting(each) for each in ([name] if name else SETTINGS)}
    values = [
        {"name": each, "value": found, "from": source, "meaning": SETTINGS[each].text}
        for each, (found, source) in known.items()
    ]
    rows = [[each["name"], each["value"], each["from"], each["meaning"]] for each in values]
    columns = ["setting", "value", "from", "meaning"]
    output.report(values, as_json, lambda _: output.table(columns, rows))


_MANIFEST = "manifest"


def complete_schemas(incomplete: str) -> list[str]:
    """Return the names of schemas with this beginning, for shell completion."""
    from dlctl.service.shapes import SHAPES

    return [name for name in (_MANIFEST, *SHAPES) if name.startswith(incomplete)]


def schema(
    name: str | None = typer.Argument(
        None, metavar="NAME", autocompletion=complete_schemas, show_default=False,
        help="A schema; without one, all their names.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Print the JSON Schema of manifests, or of an output.

    Editors read that of manifests; the others tell what commands print with `--json`.

    Example: dlctl schema manifest > manifest.schema.json
    """
    from dlctl.manifest.model import json_schema
    from dlctl.service.shapes import SHAPES, schema_of

    if name == _MANIFEST:
        return output.report(json_schema(), True, lambda _: None)
    if name in SHAPES:
        return output.report(schema_of(name), True, lambda _: None)
    if name is not None:
        raise typer.BadParameter(f"{name!r} is no schema: `dlctl schema` lists their names")
    known: list[dict[str, Any]] = [{"name": _MANIFEST, "what": "a manifest", "commands": {}}]
    known += [{"name": each, "what": shape.text, "commands": dict(shape.commands)}
              for each, shape in SHAPES.items()]  # fmt: skip
    rows = [[each["name"], each["what"], ", ".join(each["commands"]) or "-"] for each in known]
    columns = ["schema", "what", "printed with --json by"]
    return output.report(known, as_json, lambda _: output.table(columns, rows))
