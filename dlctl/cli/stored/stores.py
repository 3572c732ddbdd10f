"""`dlctl stores …`: the types of data stores, and whether a manifest's stores can be reached."""

from __future__ import annotations

import enum
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import DRY_RUN, ID, JSON, SITE, ago, opened, training
from dlctl.cli.frameworks import end_if_wrong, origin
from dlctl.cli.manifests import MANIFEST
from dlctl.units import format_bytes

if TYPE_CHECKING:
    from dlctl.data.cache import SiteCache

app = typer.Typer(help="The data stores: where training data comes from and results go.",
                  no_args_is_help=True)  # fmt: skip


class Where(str, enum.Enum):
    """From where data stores are asked."""

    HERE = "here"
    LOGIN = "login"
    NODE = "node"


def register(main: typer.Typer) -> None:
    """Add the commands."""
    main.add_typer(app, name="stores")


@app.command("list")
def list_(as_json: bool = JSON) -> None:
    """List the types of data stores: dlctl's, yours, and those of this folder.

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


@app.command()
def show(
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


@app.command()
def check(
    manifest: Path = MANIFEST, site: str = SITE,
    where: Where = typer.Option(
        Where.HERE, "--from", help="Who asks: this machine, the site's login node, or one of its "
        "nodes in a job of its own.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Ask a manifest's data stores for what is in their containers.

    Example: dlctl stores check manifest.yml --site mycluster --from login
    """
    from dlctl.data.checks import ask_here, ask_there, check_stores
    from dlctl.manifest.overrides import Overrides
    from dlctl.request.build import prepare

    with opened(site) as session:
        request = prepare(manifest, Overrides(), session.site)
        there = ask_there(session, request.plan, on_node=where is Where.NODE)
        found = check_stores(request, ask_here if where is Where.HERE else there)
    rows = [[c.store, c.container, c.state, c.seen, c.hint] for c in found]
    columns = ["store", "container", "state", "seen", "do"]
    output.report(found, as_json, lambda _: output.table(columns, rows, "no store needs a check"))
    if any(each.state == "failed" for each in found):
        raise typer.Exit(4)


@app.command()
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
    """List the data of stores that a site keeps for later trainings, and empty its cache.

    Example: dlctl stores cache --site mycluster --keep 500GB
    """
    from dlctl.data.cache import look_into_cache, try_emptying
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
    rows = [
        [
            each.container,
            each.endpoint,
            str(each.files),
            format_bytes(each.size_bytes),
            ago(time.time() - each.used_at),
            ", ".join(each.users),
        ]
        for each in found.held
    ]
    columns = ["container", "store", "files", "size", "used", "by"]
    for verb, some in (("removed", found.removed), ("would remove", found.would_remove)):
        for each in some:
            output.note(
                f"{verb}: {each.container} of {each.endpoint}, {format_bytes(each.size_bytes)}"
            )
    output.table(columns, rows, "the cache is empty")
    if found.held:
        output.note(f"all together: {format_bytes(found.total_bytes)}")


@app.command()
def save(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """Store the results of a training from the login node: its nodes can't, or it failed there.

    Example: dlctl stores save digits-3k9f
    """
    from dlctl.data.results import store_again

    with training(training_id) as (session, record, store):
        lines = store_again(session, record, store, output.note)
    done = {"training_id": record.training_id, "stored": lines}
    output.report(done, as_json, lambda _: output.lines(lines))
