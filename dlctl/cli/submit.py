"""`dlctl submit` and `dlctl tag`: trainings that are sent, and the user's words for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    IDS,
    JSON,
    NOTHING,
    SITE,
    client,
    complete_tags,
    filtered,
    opened,
    overriding,
)  # fmt: skip
from dlctl.cli.following import LogLines, end_of_following, follow
from dlctl.cli.manifests import FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session
    from dlctl.lifecycle.many import Sent
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record
    from dlctl.service.client import Filter

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


@overriding()
def submit(
    manifests: list[Path] = MANIFESTS, site: str = SITE, *, overrides: Overrides,
    tags: list[str] = TAGS, repeat: int | None = REPEAT, seed_from: int | None = SEED_FROM,
    sweep: Path | None = SWEEP,
    model: str | None = typer.Option(
        None, "--model", metavar="ID[@VERSION]",
        help="Train this version of a stored model, at its site, instead of a manifest's folder.",
    ),
    files: bool = FILES,
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print the log as it grows."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Submit one training or many, once each, and print their ids; does not wait for them to run.

    The same command takes up what was broken off.

    Example: dlctl submit manifest.yml --site mycluster --learners 4 --time 4h
    """
    from dlctl.request.variants import variants
    from dlctl.service.client import checked_tags
    from dlctl.service.submit import submit_variants

    if model and manifests:
        raise typer.BadParameter("either a manifest or --model says what is trained")
    wanted = variants(manifests or [Path("manifest.yml")], overrides, sweep, repeat, seed_from)
    if stay and len(wanted) > 1:
        raise typer.BadParameter("--follow follows one training; see `dlctl watch` for several")
    store = client().store
    with opened(_site_of(model, site) if model else site) as session:
        sent = submit_variants(session, store, wanted, model, checked_tags(tags), output.Shown(),
                               list_files=files)  # fmt: skip
        if not sent.is_batch:
            return _end_of_one(sent, session, stay, as_json)
    return _end_of_many(sent, as_json)


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


def _site_of(model: str, site: str) -> str:
    """Return the site that has a stored model, as far as is known; refuse another one."""
    from dlctl.models.record import sites_of, the_site_of

    sites = sites_of(model)
    if site in sites or not sites:
        return site
    if site != "local":
        there = " and ".join(sites)
        raise typer.BadParameter(f"the model {model} is stored at the site {there}, not at {site}")
    return the_site_of(model) or site


@filtered
def tag(
    training_ids: list[str] = IDS, *, wanted: Filter,
    add: list[str] = typer.Option(None, "--add", metavar="WORD", help="Give this tag."),
    remove: list[str] = typer.Option(None, "--remove", metavar="WORD", help="Take this tag away.",
                                     autocompletion=complete_tags),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show the tags of trainings, give them some, or take some away; asks no site.

    Example: dlctl tag digits-3k9f --add baseline
    """
    from dlctl.service import client as choose

    store = client().store
    known = choose.tag(store, choose.chosen(store, training_ids, wanted), add, remove)
    rows = [[each.training_id, ", ".join(each.tags) or "-"] for each in known]
    output.report(known, as_json,
                  lambda _: output.table(["training", "tags"], rows, NOTHING))  # fmt: skip
