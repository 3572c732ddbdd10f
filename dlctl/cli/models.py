"""Commands about stored models: models create, list, show, update, delete, diff, pull, copy, gc."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    DRY_RUN,
    JSON,
    YES,
    ago,
    ask_nothing_in_json,
    client,
    complete_ids,
    complete_sites,
    default_site,
    folder_name,
    opened,
    seconds,
)
from dlctl.cli.views.model import (
    print_changes,
    print_differences,
    print_version,
)
from dlctl.units import counted, format_bytes

if TYPE_CHECKING:
    from dlctl.models.known import KnownModel


def complete_models(incomplete: str) -> list[str]:
    """Return the model ids with this beginning, for shell completion."""
    from dlctl.models.known import ModelRecord

    ids = [model.model_id for model in ModelRecord().all()]
    return [model_id for model_id in ids if model_id.startswith(incomplete)]


MODEL = typer.Argument(
    ..., metavar="ID[@VERSION]", autocompletion=complete_models,
    help="Model id, or a unique beginning or end of it. VERSION is a number or an alias; the "
    "newest by default.",
)  # fmt: skip
FOLDER = typer.Argument(
    None, metavar="FOLDER|MANIFEST", help="What to store; not with --from.", show_default=False
)
SITE = typer.Option(
    None, "--site", "-s", envvar="DLCTL_SITE", autocompletion=complete_sites,
    help="The site of the model; by default the one where it was last seen, or that of "
    "`dlctl config site`, or `local`.",
)  # fmt: skip
FROM = typer.Option(
    None, "--from", metavar="TRAINING", autocompletion=complete_ids,
    help="Store a training's results with its code; nothing leaves the site.",
)  # fmt: skip
RESULTS = typer.Option(
    "*", "--results", metavar="GLOB", help="With --from: only results whose paths match."
)
TAGS = typer.Option(None, "--tag", "-t", help="A word to find the model by; as often as you like.")
ALIASES = typer.Option(
    None, "--alias", metavar="WORD", help="A name for this version, such as best; it can move."
)
DESCRIPTION = typer.Option(None, "--description", help="A description for people.")


def _where(wanted: str, site: str | None) -> str:
    """Return the site that has a model, as far as is known."""
    from dlctl.models.known import the_site_of

    return site or the_site_of(wanted) or default_site()


def create(
    context: typer.Context, folder: Path | None = FOLDER,
    name: str = typer.Option("", "--name", help="The model's name; the manifest's by default."),
    tags: list[str] = TAGS, aliases: list[str] = ALIASES, description: str | None = DESCRIPTION,
    training_id: str | None = FROM, results: str = RESULTS, site: str | None = SITE,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Store a folder, or what a training made, as a model.

    Example: dlctl models create --from digits-3k9f --name digits --alias best
    """
    from dlctl.service import models

    mine, source = client(), models.Source(folder, training_id, results)
    if not source:
        raise typer.BadParameter("name a folder, or --from TRAINING")
    wish = models.wish(name, tags, aliases, description)
    chosen_by = context.get_parameter_source("site")
    if training_id and (chosen_by is None or chosen_by.name != "COMMANDLINE"):
        site = mine.store.find(training_id).site
    where = site or default_site()
    with models.models_at(mine, where) as there:
        made = there.make(wish, source)
        there.read()
    output.report(made, as_json, lambda _: output.line(made.label))
    output.note(f"{counted(made.file_count, 'file')}, {format_bytes(made.size_bytes)}, at {where}")


def list_(
    tag: str | None = typer.Option(None, "--tag", "-t", help="Only models with this tag."),
    offline: bool = typer.Option(False, "--offline", help="Ask no site; show the local record."),
    site: str | None = typer.Option(
        None, "--site", "-s", autocompletion=complete_sites,
        help="Only models at this site; it is asked even if no model there is known.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """List the stored models.

    The default site is asked, and those where models are known.

    Example: dlctl models list --tag reading
    """
    from dlctl.service.models import known_models

    found = known_models(client(), site, default_site(), offline=offline)
    models = [each for each in found if tag is None or tag in each.tags]
    rows = [
        [m.model_id, m.site + _age(m, offline=offline), str(len(m.numbers)),
         format_bytes(m.version(m.numbers[-1]).size_bytes),
         ago(time.time() - m.version(m.numbers[-1]).created_at),
         " ".join(f"@{alias}={number}" for alias, number in sorted(m.aliases.items())) or "-",
         " ".join(m.tags) or "-"]
        for m in models
    ]  # fmt: skip
    columns = ["model", "site", "versions", "size", "newest", "aliases", "tags"]
    none = "no model has this tag" if tag else (
        "no models yet: `dlctl models create FOLDER` stores one, `dlctl models list --site SITE` "
        "asks another site"
    )  # fmt: skip
    output.report(models, as_json, lambda _: output.table(columns, rows, none))


def show(
    model: str = MODEL,
    verify: bool = typer.Option(
        False, "--verify", help="Read every content at the site; exit code 9 if one is damaged."
    ),
    site: str | None = SITE, as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show a version: its files, origin and metrics.

    The model's other versions are listed, too.

    Example: dlctl models show digits@best
    """
    from dlctl.errors import ResultsError
    from dlctl.models import reading
    from dlctl.service.models import models_at

    with models_at(client(), _where(model, site)) as there:
        found = there.version(model)
        damaged = reading.verify(there.session, found.version) if verify else []
    output.report(found.plain() | {"damaged": damaged} if verify else found, as_json,
                  lambda _: print_version(found, verified=verify and not damaged))  # fmt: skip
    if damaged:
        raise ResultsError(
            f"damaged or missing in {found.version.label}: {', '.join(damaged[:20])}",
            hint=f"store the same files again: dlctl models update {found.model.model_id} FOLDER",
        )


def update(
    model: str = MODEL, folder: Path | None = FOLDER,
    tags: list[str] = TAGS, aliases: list[str] = ALIASES, description: str | None = DESCRIPTION,
    remove_tags: list[str] = typer.Option(None, "--remove-tag", help="Take a tag away."),
    remove_aliases: list[str] = typer.Option(None, "--remove-alias", help="Take an alias away."),
    training_id: str | None = FROM, results: str = RESULTS, site: str | None = SITE,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Add a version to a model, move an alias, or change tags.

    A version comes from a folder or a training.

    Example: dlctl models update digits@2 --alias best
    """
    from dlctl.models.changes import Changes
    from dlctl.service import models

    source = models.Source(folder, training_id, results)
    wish = models.wish("", tags, aliases, description)
    gone = Changes(removed_tags=remove_tags or [], removed_aliases=remove_aliases or [])
    with models.models_at(client(), _where(model, site)) as there:
        new, number = there.update(model, wish, source, gone)
    answer = asdict(new.version(number)) | {"aliases": new.aliases, "tags": new.tags}
    output.report(answer, as_json, lambda _: print_changes(new, number))


def delete(
    model: str = MODEL,
    yes: bool = YES,
    dry_run: bool = DRY_RUN,
    site: str | None = SITE, as_json: bool = JSON,
) -> None:  # fmt: skip
    """Delete a model, or one version; asks first.

    It is refused if anything refers to it. Contents that no version needs stay until `dlctl models
    gc`.

    Example: dlctl models delete digits@1
    """
    from dlctl.service.models import models_at

    ask_nothing_in_json(as_json, answered=yes or dry_run)
    with models_at(client(), _where(model, site)) as there:
        old, number = there.deletable(model)
        if not (dry_run or yes or _confirmed(old, number)):
            return None
        if not dry_run:
            there.delete(old, number)
    gone = old.model_id + (f"@{number}" if number else "")
    done = {"model": gone, "site": old.site, "deleted": not dry_run}
    verb = "would delete" if dry_run else "deleted"
    return output.report(done, as_json, lambda _: output.line(f"{verb} {gone}"))


def diff(
    first: str = MODEL, second: str = MODEL, site: str | None = SITE, as_json: bool = JSON
) -> None:
    """Compare two versions: files, manifest, metrics, origin.

    Example: dlctl models diff digits@1 digits@best
    """
    from dlctl.models.compare import compare
    from dlctl.service.models import models_at

    with models_at(client(), _where(first, site)) as there:
        old, new = (there.version(each).version for each in (first, second))
    output.report(compare(old, new), as_json, print_differences)


def pull(
    model: str = MODEL,
    folder: Path | None = typer.Argument(
        None, metavar="FOLDER", help="Target folder; ./ID@VERSION by default.", show_default=False
    ),
    site: str | None = SITE, as_json: bool = JSON,
) -> None:  # fmt: skip
    """Download a version, and verify every file.

    What the training made is in `trained/`.

    Example: dlctl models pull digits@best
    """
    from dlctl.models import pull as pulling
    from dlctl.service.models import models_at

    with models_at(client(), _where(model, site)) as there:
        found = there.version(model)
        to = (folder or Path(found.version.label)).absolute()
        with output.progress("pulling") as on_progress:
            files = pulling.pull(there.session, found, to, on_progress)
    answer = {"model": found.version.label, "folder": str(to), "files": files}
    sentence = f"{counted(len(files), 'file')} in {folder_name(to)}"
    output.report(answer, as_json, lambda _: output.line(sentence))


def copy(
    model: str = MODEL,
    to: str = typer.Argument(
        ..., metavar="SITE", autocompletion=complete_sites, help="The site to copy to."
    ),
    aliases: list[str] = ALIASES, site: str | None = SITE, as_json: bool = JSON,
) -> None:  # fmt: skip
    """Copy a version to another site.

    It gets an id of its own there, and only what is not there is sent.

    Example: dlctl models copy digits@best mycluster --alias best
    """
    from dlctl.service import models

    mine, where, wish = client(), _where(model, site), models.wish(aliases=aliases)
    with models.models_at(mine, where) as there:
        found = there.version(model)
        with models.models_at(mine, to) as target:
            made = there.copy(found, target, wish)
    output.report(made, as_json, lambda _: output.line(made.label))
    output.note(f"{found.version.label} at {where} is {made.label} at {to}")


def gc(
    older_than: str = typer.Option(
        "1d", "--older-than", help="Spare what is younger: a version may be in the making."
    ),
    dry_run: bool = DRY_RUN,
    site: str = typer.Option(
        ..., "--site", "-s", autocompletion=complete_sites, default_factory=default_site,
        show_default=False, help="The site to clean; that of `dlctl config site`, or `local`.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Remove the contents that no version refers to any more.

    Example: dlctl models gc --dry-run
    """
    from dlctl.models.changes import collect_garbage

    age_s = 0 if older_than in ("0", "0s") else seconds(older_than, "--older-than")
    with opened(site) as session:
        done = collect_garbage(session, age_s, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    output.report(done, as_json, lambda _: output.line(
        f"{verb} {counted(done.blobs, 'content')}, {format_bytes(done.size_bytes)}"))  # fmt: skip


def _confirmed(model: KnownModel, number: int | None) -> bool:
    versions = f"{len(model.numbers)} versions" if len(model.numbers) > 1 else "its one version"
    what = f"{model.model_id}@{number}" if number else f"{model.model_id} with {versions}"
    return output.agreed(f"delete {what} from {model.site}?", "dlctl models delete")


def _age(model: KnownModel, *, offline: bool) -> str:
    fresh = model.stale_since is None and not offline
    return "" if fresh else f" ({ago(time.time() - model.seen_at)})"


GROUPS = {"models": (
    "Store versions of models, and train from them.",
    (list_, create, show, update, delete, diff, pull, copy, gc),
)}  # fmt: skip
