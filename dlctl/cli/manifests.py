"""Commands about manifests: init, validate, render. None of them uses the network."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON, SITE, opened, overriding
from dlctl.cli.manners import paged

if TYPE_CHECKING:
    from dlctl.manifest.overrides import Overrides

MANIFEST = typer.Argument(Path("manifest.yml"), help="The manifest.", show_default=True)
FILES = typer.Option(
    False, "--files", help="List each file that is sent, and each that is not, with the rule."
)


def init(folder: Path = typer.Argument(..., help="The new folder."), as_json: bool = JSON) -> None:
    """Create a folder with a manifest, a train.py and a .gitignore, ready to run.

    Example: dlctl init my-training && cd my-training
    """
    from dlctl.request.scaffold import scaffold

    files = [str(path) for path in scaffold(folder, folder.resolve().name)]
    made = {"folder": str(folder), "files": files}
    output.report(made, as_json,
                  lambda v: output.lines(f"created {f}" for f in v["files"]))  # fmt: skip
    output.hint(f"cd {shlex.quote(str(folder))} && dlctl submit manifest.yml")


def validate(manifest: Path = MANIFEST, as_json: bool = JSON) -> None:
    """Check a manifest and show all its errors at once.

    Example: dlctl validate manifest.yml
    """
    from dlctl.errors import ManifestError
    from dlctl.manifest.load import load_manifest
    from dlctl.request.build import look_over

    try:
        known = load_manifest(manifest)
        notes = look_over(known, manifest.resolve().parent)
    except ManifestError as error:
        if not as_json:
            raise
        wrong = {
            "manifest": str(manifest), "valid": False, "problems": list(error.problems),
            "not_in_this_version": [], "warnings": [],
        }  # fmt: skip
        output.report(wrong, True, lambda _: None)
        raise typer.Exit(error.exit_code) from None
    from dlctl.contract.programs.lone_program import warn_if_alone

    folder = manifest.resolve().parent
    alone = warn_if_alone(known.framework.command, known.learners, folder)
    told = [alone] if alone else []
    valid = {
        "manifest": str(manifest), "valid": True, "problems": [], "not_in_this_version": notes,
        "warnings": told,
    }  # fmt: skip
    output.report(valid, as_json, lambda _: output.line(f"{manifest} is valid"))
    for note in [*notes, *told] if not as_json else []:
        output.warn(note)


@overriding()
def render(
    manifest: Path = MANIFEST, site: str = SITE, *, overrides: Overrides,
    script: bool = typer.Option(False, "--script", help="Print only the batch script."),
    files: bool = FILES,
    training_id: str | None = typer.Option(None, "--training-id", hidden=True),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show the plan and the batch script; sends nothing, and asks the site only for stored weights.

    Example: dlctl render manifest.yml --site mycluster --learners 4
    """
    from dlctl import contract
    from dlctl.request.build import prepare
    from dlctl.request.left_out import COLUMNS, listing, rows, summary
    from dlctl.sites.files import load_site

    def ask_site(named: str) -> contract.StoredWeights:
        from dlctl.models.use import find_weights

        with opened(site) as session:
            return find_weights(session, named)

    request = prepare(manifest, overrides, load_site(site), training_id, ask_site)
    if files:
        listed = listing(request.code)
        return output.report(listed, as_json, lambda _: output.table(COLUMNS, rows(listed)))
    for text in request.plan.not_in_this_version:
        output.warn(text)
    output.note(f"a submission sends {summary(request.code)}")
    rendered: dict[str, Any] = {"script": request.script}
    if script:
        return output.report(rendered, as_json, lambda v: output.document(v["script"]))
    plan, recipe = contract.to_json(request.plan), request.plan.framework.recipe
    train = recipe.script if recipe else ""
    told = f"\n# train.sh\n{train}" if train else ""
    told += "".join(f"\n# {name}\n{text}" for name, text in request.scripts.items())
    with paged(not as_json):
        rendered = {
            "plan": request.plan,
            "script": request.script,
            "train_script": train,
            "store_scripts": request.scripts,
        }
        return output.report(
            rendered, as_json,
            lambda v: output.document(f"# plan.json\n{plan}\n# job.sbatch\n{v['script']}{told}"),
        )  # fmt: skip
