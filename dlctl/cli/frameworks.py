"""Commands about frameworks: frameworks list, show. Neither uses the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON, folder_name

if TYPE_CHECKING:
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


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        no_args_is_help=True, help="What dlctl can train with: see docs/frameworks.md."
    )
    group.command("list")(list_)
    group.command()(show)
    app.add_typer(group, name="frameworks")


def list_(folder: Path = FOLDER, as_json: bool = JSON) -> None:
    """List the frameworks; one in your folder takes precedence over one of the same name.

    A folder that is wrong is named, and the exit code is 3.

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


def show(
    name: str = typer.Argument(..., metavar="NAME", help="The framework."),
    folder: Path = FOLDER,
    as_json: bool = JSON,
) -> None:
    """Show how a framework is run, what makes it save, and its train.sh.

    Example: dlctl frameworks show pytorch
    """
    from dlctl.errors import ManifestError
    from dlctl.frameworks import find_framework, no_such
    from dlctl.sites.files import site_environments

    found = find_framework(name, folder.resolve())
    if found is None:
        raise ManifestError(no_such(name, folder.resolve()), hint="dlctl frameworks list")
    there = site_environments(found.name)
    told = {"name": found.name, "path": str(found.path), **found.settings.model_dump(),
            "template": found.template, "environments": there}  # fmt: skip
    output.report(told, as_json, _print)


def _print(told: dict[str, Any]) -> None:
    job, checkpoint = told["job"], told["checkpoint"]
    output.fields({
        "framework": f"{told['name']}: {told['title']}",
        "folder": told["path"],
        "job": f"a file such as {job['example']}" if job else "none: give a command",
        "trains": "dlctl's built-in loop" if told["loop"] else _STARTS[told["start"]],
        "needs": ", ".join(told["modules"]) or "nothing",
        "saves at": f"SIG{told['signal']}",
        "checkpoints": checkpoint["adapter"] or checkpoint["files"] or "your program's own",
        "versions": ", ".join(told["versions"]) or "any",
        "at your sites": "\n".join(
            f"{e['site']}: {', '.join(e['versions'])} (environment {e['environment']})"
            for e in told["environments"]
        ) or "in the nodes' Python",
    })  # fmt: skip
    output.document(f"\n# train.sh.j2\n{told['template']}")


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
