"""`dlctl stores …`: the types of data stores, and whether a manifest's stores can be reached."""

from __future__ import annotations

from pathlib import Path

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, JSON, SITE, training
from dlctl.cli.manifests import MANIFEST

app = typer.Typer(help="The data stores: where training data comes from and results go.",
                  no_args_is_help=True)  # fmt: skip


def register(main: typer.Typer) -> None:
    """Add the commands."""
    main.add_typer(app, name="stores")


@app.command("list")
def list_(as_json: bool = JSON) -> None:
    """List the types of data stores: dlctl's, yours, and those of this folder.

    Example: dlctl stores list
    """
    from dlctl.stores.types import find_type, type_names

    found = [find_type(name, Path()) for name in type_names(Path())]
    rows = [[t.name, ", ".join(t.scripts) or "in place", t.schema.description, str(t.folder)]
            for t in found]  # fmt: skip
    values = [{"type": t.name, "scripts": list(t.scripts), "description": t.schema.description,
               "folder": str(t.folder)} for t in found]  # fmt: skip
    output.report(values, as_json,
                  lambda _: output.table(["type", "scripts", "what", "folder"], rows))  # fmt: skip


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
def check(manifest: Path = MANIFEST, site: str = SITE, as_json: bool = JSON) -> None:
    """Ask a manifest's data stores, from this machine, for what is in their containers.

    Example: dlctl stores check manifest.yml --site mycluster
    """
    from dlctl.lifecycle.stores import check_stores
    from dlctl.manifest.overrides import Overrides
    from dlctl.request.build import prepare
    from dlctl.sites.files import load_site

    found = check_stores(prepare(manifest, Overrides(), load_site(site)))
    rows = [[c.store, c.container, c.state, c.seen, c.hint] for c in found]
    columns = ["store", "container", "state", "seen", "do"]
    output.report(found, as_json, lambda _: output.table(columns, rows, "no store needs a check"))
    if any(each.state == "failed" for each in found):
        raise typer.Exit(4)


@app.command()
def save(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """Store the results of a training from the login node, where its nodes can't reach the store.

    Example: dlctl stores save digits-3k9f
    """
    from dlctl.lifecycle import read_plan
    from dlctl.lifecycle.stores import save_by_login

    with training(training_id) as (session, record, _):
        plan = read_plan(session, record)
        lines = save_by_login(session, plan, record.attempt, output.note)
    output.report(lines, as_json, lambda _: output.line("\n".join(lines)))
