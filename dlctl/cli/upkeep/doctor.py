"""`dlctl doctor`: tests each link from this machine to a learner, and says what to fix."""

from __future__ import annotations

from pathlib import Path

import typer

from dlctl.cli import output
from dlctl.cli.common import JSON, complete_sites


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    site: str | None = typer.Argument(
        None, metavar="SITE", autocompletion=complete_sites, show_default=False,
        help="The site; without one, this machine and the way to each site.",
    ),
    deep: bool = typer.Option(False, "--deep", help="Also send a job of some seconds, which tries "
                              "the nodes, the launcher, MPI, torch and GPUs."),
    bundle: Path | None = typer.Option(None, "--bundle", metavar="FILE", help="Write an archive "
                                       "for a bug report: no credential, no code of yours."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Test each link from this machine to the learners in order, and say what to fix.

    What hangs on a broken link is skipped. Exit code 4 if a link is broken.

    Example: dlctl doctor mycluster --deep
    """
    if deep and site is None:
        raise typer.BadParameter("--deep needs a site: dlctl doctor SITE --deep")
    examined(site, as_json, deep=deep, bundle=bundle)


def examined(
    site: str | None, as_json: bool, *, here: bool = True, deep: bool = False,
    bundle: Path | None = None,
) -> None:  # fmt: skip
    """Print the links as they become known; exit code 4 if one is broken."""
    from dlctl.doctor.bundle import write_bundle
    from dlctl.doctor.chain import BROKEN
    from dlctl.doctor.examine import examine

    tell = (lambda _: None) if as_json else output.link
    found = examine(site, here=here, deep=deep, prompt=output.ask, tell=tell, note=output.note)
    output.report(found.links, as_json, lambda _: None)
    if bundle is not None:
        output.note(f"wrote {write_bundle(bundle, found, site, output.ask)}: look at it before "
                    "you send it")  # fmt: skip
    if any(link.state == BROKEN for link in found.links):
        raise typer.Exit(4)
