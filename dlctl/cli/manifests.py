"""From a manifest to a training: init, validate, render, submit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    JSON,
    SITE,
    client,
    complete_ids,
    complete_sites,
    complete_tags,
    dash,
    default_site,
    opened,
    overriding,
)
from dlctl.cli.logs import LogLines, end_of_following, follow
from dlctl.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session
    from dlctl.lifecycle.many import Sent
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record
    from dlctl.request.variants import Variant
    from dlctl.service.forecast import Forecast


MANIFEST = typer.Argument(Path("manifest.yml"), help="The manifest.", show_default=True)
FILES = typer.Option(
    False, "--files", help="List each file that is sent, and each that is not, with the rule."
)


def init(
    folder: Path = typer.Argument(..., help="A new folder, or one with a program of yours."),
    command: str = typer.Option(
        "", "--command", "-c", metavar="TEXT", show_default=False,
        help="How the folder's program is run, such as 'python train.py --lr 0.1'.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Create a folder to train, or a manifest for your program.

    In a folder with Python scripts it writes the manifest that runs yours.

    Example: dlctl init my-training && cd my-training
    """
    from dlctl.request.scaffold import scaffold, scaffold_own

    if command or any(folder.glob("*.py")):
        paths, command = scaffold_own(folder, command)
    else:
        paths = scaffold(folder, folder.resolve().name)
    made = {"folder": str(folder), "files": [str(path) for path in paths]}
    output.report(made, as_json,
                  lambda v: output.lines(f"created {f}" for f in v["files"]))  # fmt: skip
    if command:
        output.note(f"the manifest runs: {command}")
    there = "" if Path(folder).samefile(".") else f"cd {shlex.quote(str(folder))} && "
    output.hint(f"{there}dlctl submit manifest.yml")


def validate(
    manifest: Path = MANIFEST,
    notify: bool = typer.Option(False, "--notify", help="Also send a test notice from this machine "
                                "to the webhook and the mail address of `notify`."),
    site: str = SITE, as_json: bool = JSON,
) -> None:  # fmt: skip
    """Check a manifest and show all its errors at once.

    Example: dlctl validate manifest.yml
    """
    from dlctl.errors import ManifestError
    from dlctl.manifest.load import load_manifest
    from dlctl.request.build import look_over

    answer: dict[str, Any] = {"manifest": str(manifest), "valid": True, "problems": [],
                              "not_in_this_version": [], "warnings": []}  # fmt: skip
    folder = manifest.resolve().parent
    try:
        known = load_manifest(manifest)
        answer["not_in_this_version"] = look_over(known, folder)
    except ManifestError as error:
        if not as_json:
            raise
        wrong = answer | {"valid": False, "problems": list(error.problems)}
        output.report(wrong, True, lambda _: None)
        raise typer.Exit(error.exit_code) from None
    from dlctl.contract.programs.commands import warnings_of

    answer["warnings"] += warnings_of(known.framework.command, known.learners, folder)
    output.report(answer, as_json, lambda _: output.line(f"{manifest} is valid"))
    for note in [*answer["not_in_this_version"], *answer["warnings"]] if not as_json else []:
        output.warn(note)
    if notify:
        from dlctl.service.webhooks import try_notices

        for way in try_notices(known, folder, site):
            output.note(f"{way}: the test notice was taken")


@overriding()
def render(
    manifest: Path = MANIFEST, site: str = SITE, *, overrides: Overrides,
    script: bool = typer.Option(False, "--script", help="Print only the batch script."),
    files: bool = FILES,
    training_id: str | None = typer.Option(None, "--training-id", hidden=True),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show the plan and the batch script; send nothing.

    Only for stored weights the site is asked.

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
    scripts = f"\n# train.sh\n{train}" if train else ""
    scripts += "".join(f"\n# {name}\n{text}" for name, text in request.scripts.items())
    with output.paged(not as_json):
        rendered |= {"plan": request.plan, "train_script": train, "store_scripts": request.scripts}
        return output.report(
            rendered, as_json,
            lambda v: output.document(f"# plan.json\n{plan}\n# job.sbatch\n{v['script']}{scripts}"),
        )  # fmt: skip


_MOST_ROWS = 40
"""More trainings than this are not printed one by one on a terminal."""


MANIFESTS = typer.Argument(
    None, metavar="MANIFEST", help="The manifests; manifest.yml by default.", show_default=False
)
TAGS = typer.Option(
    None, "--tag", metavar="WORD", autocompletion=complete_tags,
    help="A word to find the training by; may be given more than once.",
)  # fmt: skip
REPEAT = typer.Option(None, "--repeat", min=1, metavar="N",
                      help="Train N times, each with another seed (`training.seed`).")  # fmt: skip
SEED_FROM = typer.Option(None, "--seed-from", min=0, metavar="SEED",
                         help="The first seed of --repeat.", show_default="1")  # fmt: skip
SWEEP = typer.Option(
    None, "--sweep", metavar="FILE",
    help="Train each combination of values in a file such as `framework.arguments.lr: [0.1, 0.2]`, "
    "or each of a list of points.",
)  # fmt: skip

ANY_SITE = typer.Option(
    None, "--site", "-s", autocompletion=complete_sites, show_default=False, help=SITE.help
)


@overriding()
def submit(
    manifests: list[Path] = MANIFESTS, site: str | None = ANY_SITE, *, overrides: Overrides,
    tags: list[str] = TAGS, repeat: int | None = REPEAT, seed_from: int | None = SEED_FROM,
    sweep: Path | None = SWEEP,
    model: str | None = typer.Option(
        None, "--model", metavar="ID[@VERSION]",
        help="Train this version of a stored model, at its site, instead of a manifest's folder.",
    ),
    again: str | None = typer.Option(
        None, "--from", metavar="ID", autocompletion=complete_ids,
        help="Train the code and the manifest of this training anew, with the changes that the "
        "other options make; at its site unless --site names another.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", "-n",
        help="Only show what would be sent, the plan, and where it would start first.",
    ),
    files: bool = FILES,
    no_advice: bool = typer.Option(
        False, "--no-advice", help="Don't say if it asks for far more than earlier ones used."
    ),
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print the log as it grows."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Submit one training or many, and print their ids.

    Each is submitted once: the same command takes up what was broken off. It does not wait.

    Example: dlctl submit manifest.yml --site mycluster --learners 4 --time 4h
    """
    from dlctl.request.variants import variants
    from dlctl.service.client import checked_tags
    from dlctl.service.submit import refuse_several, submit_variants

    refuse_several(model, again, manifests)
    mine = client()
    if again:
        from dlctl.service.again import manifest_of

        record = mine.store.find(again)
        manifests = [manifest_of(mine, record)]
        site = site or record.site
    site = _site_of(model, site) if model else site or default_site()
    if dry_run and model:
        raise typer.BadParameter("--dry-run shows the training of a manifest, or of --from")
    wanted = variants(manifests or [Path("manifest.yml")], overrides, sweep, repeat, seed_from)
    if dry_run:
        return _dry_run(wanted, site, as_json)
    if stay and len(wanted) > 1:
        raise typer.BadParameter("--follow follows one training; see `dlctl watch` for several")
    store = mine.store
    with opened(site) as session:
        try:
            sent = submit_variants(session, store, wanted, model, checked_tags(tags),
                                   output.Shown(), list_files=files,
                                   advice=not no_advice)  # fmt: skip
        except KeyboardInterrupt:
            broken_off = (
                "broken off; the same command goes on where it was, and sends nothing twice"
            )
            raise output.interrupted(broken_off, "dlctl list") from None
        if not sent.is_batch:
            return _end_of_one(sent, session, stay, as_json)
    return _end_of_many(sent, as_json)


def _dry_run(wanted: Sequence[Variant], site: str, as_json: bool) -> None:
    """Print what a submission would send and ask for, and where it would start first."""
    from dlctl.service.forecast import forecast

    with opened(site) as session:
        found = forecast(session, client().store, wanted, output.Shown())
    output.report(found, as_json, lambda _: _print_forecast(found))


def _print_forecast(found: Forecast) -> None:
    output.fields(found.plan)
    output.line()
    rows = [[each.path, dash(each.size_bytes, format_bytes)] for each in found.files]
    output.table(["file", "size"], rows[:_MOST_ROWS])
    if (more := len(rows) - _MOST_ROWS) > 0:
        output.line(f"and {more} more: dlctl render --files")
    if found.starts:
        output.line()
        output.table(["partition", "start"],
                     [[each.partition or "-", each.sentence] for each in found.starts])  # fmt: skip
    output.note("nothing was sent")


def _end_of_one(sent: Sent, session: Session, stay: bool, as_json: bool) -> None:
    record = sent.one()
    output.report(record, as_json, lambda _: output.line(record.training_id))
    sent.finish()
    if stay:
        return end_of_following(
            follow(session, record, sent.store, lines=LogLines(as_json=as_json))
        )
    return output.hint(f"dlctl logs --follow {record.training_id}")


def _end_of_many(sent: Sent, as_json: bool) -> None:
    """Print all trainings in a table, and how many there are.

    Raises:
        DlctlError: the first reason why one has no job.
    """
    rows = sent.rows()
    known = [record.plain() | {"error": error.message if error else ""} for record, error in rows]
    output.report(known, as_json, lambda _: _print_table(rows))
    failed = [error for _, error in rows if error]
    waiting = [record for record, error in rows if not error and not record.job_id]
    submitted = len(known) - len(failed) - len(waiting)
    before = f", {sent.before} of them before" if sent.before else ""
    output.note(f"{submitted} of {len(known)} trainings submitted{before}")
    if waiting:
        output.note(f"{len(waiting)} wait: {waiting[0].reason}; the same command goes on")
    elif not any(map(_is_open, failed)):
        sent.finish()
    if failed:
        raise failed[0]
    output.hint(f"dlctl list --tag {sent.tag}" if sent.tag else "dlctl list")


def _is_open(error: DlctlError) -> bool:
    """Return whether the same command would try a training again."""
    from dlctl.errors import SubmitRejected

    return not isinstance(error, SubmitRejected)


def _print_table(rows: Sequence[tuple[Record, DlctlError | None]]) -> None:
    import sys

    shown = [[record.training_id, record.varied or "-", record.job_id or "-",
              str(record.state) if record.job_id or record.state.final else "not submitted"]
             for record, _ in rows]  # fmt: skip
    more = len(shown) - _MOST_ROWS if sys.stdout.isatty() else 0
    output.table(["training", "varied", "job", "state"], shown[:_MOST_ROWS] if more > 0 else shown)
    if more > 0:
        output.note(f"and {more} more: dlctl list")


def _site_of(model: str, site: str | None) -> str:
    """Return the site that has a stored model, as far as is known; refuse another one."""
    from dlctl.models.known import sites_of, the_site_of

    sites, default = sites_of(model), default_site()
    if not site:
        return default if default in sites else the_site_of(model) or default
    if sites and site not in sites:
        there = " and ".join(sites)
        raise typer.BadParameter(f"the model {model} is stored at the site {there}, not at {site}")
    return site
