"""The folders that extend dlctl: frameworks, and types of data stores with what is in them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from dlctl.cli import output
from dlctl.cli.common import DRY_RUN, ID, JSON, SITE, ago, folder_name, opened, training
from dlctl.cli.manifests import MANIFEST
from dlctl.units import format_bytes

if TYPE_CHECKING:
    from dlctl.data import SiteCache
    from dlctl.errors import DlctlError


FOLDER = typer.Option(
    Path(), "--folder", help="Also look in this folder's templates/frameworks.", show_default=False
)
_WHERE = {"package": "dlctl", "user": "yours", "folder": "this folder"}
_STARTS = {
    "learner": "one process for each learner",
    "node": "one process for each node, which starts the others there",
    "own": "one process, which starts all others",
}


def list_frameworks(folder: Path = FOLDER, as_json: bool = JSON) -> None:
    """List the frameworks.

    One in your folder takes precedence over one of the same name. A folder that is wrong is named,
    and the exit code is 3.

    Example: dlctl frameworks list
    """
    from dlctl.frameworks import list_frameworks

    found, wrong = list_frameworks(folder.resolve())
    values = [
        {"name": f.name, "title": f.settings.title,
         "job": f.settings.job.suffix if f.settings.job else None,
         "from": _WHERE[f.place], "folder": str(f.path)}
        for f in found
    ]  # fmt: skip
    rows = [[str(v["name"]), str(v["title"]), str(v["job"] or "-"), origin(f.path)]
            for v, f in zip(values, found, strict=True)]  # fmt: skip
    columns = ["framework", "what it is", "job", "from"]
    output.report(values, as_json, lambda _: output.table(columns, rows))
    end_if_wrong(wrong)


def show_framework(
    name: str = typer.Argument(..., metavar="NAME", help="The framework."),
    folder: Path = FOLDER,
    as_json: bool = JSON,
) -> None:
    """Show how a framework is run and saves, and its train.sh.

    Example: dlctl frameworks show pytorch
    """
    from dlctl.errors import ManifestError
    from dlctl.frameworks import find_framework, no_such
    from dlctl.sites.files import site_environments

    found = find_framework(name, folder.resolve())
    if found is None:
        raise ManifestError(no_such(name, folder.resolve()), hint="dlctl frameworks list")
    there = site_environments(found.name)
    details = {"name": found.name, "path": str(found.path), **found.settings.model_dump(),
               "template": found.template, "environments": there}  # fmt: skip
    output.report(details, as_json, _print)


def _print(details: dict[str, Any]) -> None:
    job, checkpoint = details["job"], details["checkpoint"]
    output.fields({
        "framework": f"{details['name']}: {details['title']}",
        "folder": details["path"],
        "job": f"a file such as {job['example']}" if job else "none: give a command",
        "trains": "dlctl's built-in loop" if details["loop"] else _STARTS[details["start"]],
        "needs": ", ".join(details["modules"]) or "nothing",
        "saves at": f"SIG{details['signal']}",
        "checkpoints": checkpoint["adapter"] or checkpoint["files"] or "your program's own",
        "versions": ", ".join(details["versions"]) or "any",
        "at your sites": "\n".join(
            f"{e['site']}: {', '.join(e['versions'])} (environment {e['environment']})"
            for e in details["environments"]
        ) or "in the nodes' Python",
    })  # fmt: skip
    output.document(f"\n# train.sh.j2\n{details['template']}")


def origin(folder: Path) -> str:
    """Return where a type or a framework comes from: `dlctl`, or its folder."""
    from dlctl.package_data import data_path

    folder = folder.resolve()
    is_ours = folder.is_relative_to(data_path("templates").resolve())
    return "dlctl" if is_ours else folder_name(folder)


def end_if_wrong(wrong: Sequence[DlctlError]) -> None:
    """Say what is wrong with folders that a list lacks, and end with the exit code of that."""
    for error in wrong:
        output.warn(error.message)
    if wrong:
        raise typer.Exit(wrong[0].exit_code)


def list_stores(as_json: bool = JSON) -> None:
    """List the types of data stores: dlctl's and yours.

    A folder that is wrong is named, and the exit code is 3.

    Example: dlctl stores list
    """
    from dlctl.stores.types import list_types

    found, wrong = list_types(Path.cwd())
    rows = [[t.name, ", ".join(t.scripts) or "in place", t.schema.description, origin(t.folder)]
            for t in found]  # fmt: skip
    values = [
        {"type": t.name, "scripts": list(t.scripts), "description": t.schema.description,
         "folder": str(t.folder)}
        for t in found
    ]  # fmt: skip
    output.report(values, as_json,
                  lambda _: output.table(["type", "scripts", "what", "from"], rows))  # fmt: skip
    end_if_wrong(wrong)


def show_store(
    name: str = typer.Argument(..., metavar="TYPE", help="The type."), as_json: bool = JSON
) -> None:
    """Show what a type's `connection` needs.

    Example: dlctl stores show s3_datastore
    """
    from dlctl.stores.types import find_type

    known = find_type(name, Path())
    rows = [
        [key, "required" if each.required else each.default or "", "yes" if each.secret else "",
         each.description] for key, each in known.connection.items()
    ]  # fmt: skip
    if not as_json:
        output.note(f"# {known.schema.description} ({known.folder})")
    values = {"type": name, "folder": str(known.folder), **known.schema.model_dump()}
    output.report(values, as_json, lambda _: output.table(
        ["connection", "default", "secret", "what"], rows))  # fmt: skip


def check(
    manifest: Path = MANIFEST, site: str = SITE,
    where: Literal["here", "login", "node"] = typer.Option(
        "here", "--from", help="Who asks: this machine, the site's login node, or one of its "
        "nodes in a job of its own.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Ask a manifest's data stores what their containers hold.

    Example: dlctl stores check manifest.yml --site mycluster --from login
    """
    from dlctl.manifest.overrides import Overrides
    from dlctl.request.build import prepare
    from dlctl.store_checks import check_stores

    with opened(site) as session:
        request = prepare(manifest, Overrides(), session.site)
        found = check_stores(session, request, where)
    rows = [[c.store, c.container, c.state, c.seen, c.hint] for c in found]
    columns = ["store", "container", "state", "seen", "do"]
    output.report(found, as_json, lambda _: output.table(columns, rows, "no store needs a check"))
    if any(each.state == "failed" for each in found):
        raise typer.Exit(4)


def cache(
    site: str = SITE,
    clear: bool = typer.Option(False, "--clear", help="Remove all that no training uses."),
    keep: str | None = typer.Option(
        None, "--keep", metavar="SIZE",
        help="Remove what no training uses, the longest unused first, until so much is left.",
    ),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """List or empty a site's cache of the data of stores.

    Example: dlctl stores cache --site mycluster --keep 500GB
    """
    from dlctl.data import look_into_cache, try_emptying
    from dlctl.units import UnitError, parse_size

    try:
        keep_bytes = 0 if clear else None if keep is None else parse_size(keep)
    except UnitError as error:
        raise typer.BadParameter(str(error), param_hint="--keep") from None
    with opened(site) as session:
        if dry_run and keep_bytes is not None:
            found = try_emptying(session, keep_bytes)
        else:
            found = look_into_cache(session, keep_bytes)
    output.report(found, as_json, lambda _: _print_cache(found))


def _print_cache(found: SiteCache) -> None:
    rows = [[each.container, each.endpoint, str(each.files), format_bytes(each.size_bytes),
             ago(time.time() - each.used_at), ", ".join(each.users)]
            for each in found.held]  # fmt: skip
    columns = ["container", "store", "files", "size", "used", "by"]
    for verb, some in (("removed", found.removed), ("would remove", found.would_remove)):
        for each in some:
            what = f"{each.container} of {each.endpoint}, {format_bytes(each.size_bytes)}"
            output.note(f"{verb}: {what}")
    output.table(columns, rows, "the cache is empty")
    if found.held:
        output.note(f"all together: {format_bytes(found.total_bytes)}")


def save(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """Store the results of a training from the login node.

    For nodes that can't, and after a failure there.

    Example: dlctl stores save digits-3k9f
    """
    from dlctl.data import store_again

    with training(training_id) as (session, record, store):
        lines = store_again(session, record, store, output.note)
    done = {"training_id": record.training_id, "stored": lines}
    output.report(done, as_json, lambda _: output.lines(lines))


GROUPS = {
    "frameworks": ("Show what dlctl can train with.",
                   (list_frameworks, show_framework)),
    "stores": ("Show and check data stores; empty their caches.",
               (list_stores, show_store, check, cache, save)),
}  # fmt: skip
