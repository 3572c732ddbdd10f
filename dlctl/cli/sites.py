"""`dlctl sites …` and `dlctl doctor`: where trainings can run, and whether they can."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from dlctl.cli import output
from dlctl.cli.common import DRY_RUN, JSON, ago, complete_sites
from dlctl.contract.ground.amounts import format_span

NAME = typer.Argument(..., metavar="NAME", help="The site.", autocompletion=complete_sites)


def list_(as_json: bool = JSON) -> None:
    """List the sites.

    Your own file takes precedence over a shipped one of the same name.

    Example: dlctl sites list
    """
    from dlctl.sites.files import list_sites

    known = [each.plain() for each in list_sites()]
    rows = [[each["name"], each["kind"], each["file"]] for each in known]
    output.report(known, as_json, lambda _: output.table(["site", "kind", "file"], rows))


def show(name: str = NAME, as_json: bool = JSON) -> None:
    """Print a site's file, or its settings as JSON.

    Example: dlctl sites show local
    """
    from dlctl.sites.files import find_site, load_site

    file = find_site(name)
    if as_json:
        output.report(load_site(name).model_dump(), as_json, lambda _: None)
        return
    output.note(f"# {file.path}")
    output.document(file.path.read_text(encoding="utf-8", errors="replace"))


def add(
    name: str = typer.Argument(..., metavar="NAME", help="The name of the new site."),
    target: str = typer.Argument(..., metavar="USER@HOST", help="Or an ssh alias, or `local`."),
    port: int | None = typer.Option(None, "--port", help="SSH port."),
    root: str | None = typer.Option(
        None, "--root", help="Root folder on the site; ~/dlctl by default."
    ),
    python: str | None = typer.Option(None, "--python", help="The nodes' Python, if there is one."),
    without_slurm: bool = typer.Option(
        False, "--without-slurm", help="Run jobs on that machine itself."
    ),
    force: bool = typer.Option(False, "--force", help="Replace a file of the same name."),
    as_json: bool = JSON,
) -> None:
    """Inspect a cluster and write its site file.

    Example: dlctl sites add mycluster alice@login.example.org
    """
    from dlctl.site_admin.actions import add_site, parse_target

    added = add_site(name, parse_target(target, port), root=root, python=python,
                     alone=without_slurm, force=force, prompt=output.ask)  # fmt: skip
    shown = {name.replace("_", " "): text for name, text in vars(added).items()}
    output.report(added, as_json, lambda _: output.fields(shown))
    output.hint(f"dlctl {'doctor' if python else 'sites setup'} {name}")


def remove(name: str = NAME, dry_run: bool = DRY_RUN, as_json: bool = JSON) -> None:
    """Remove your own site file; nothing on the site goes.

    Example: dlctl sites remove mycluster
    """
    from dlctl.sites.files import remove_site

    file = remove_site(name, dry_run=dry_run)
    done = {"site": name, "file": str(file), "removed": not dry_run}
    verb = "would remove" if dry_run else "removed"
    output.report(done, as_json, lambda _: output.line(f"{verb} {file}"))


def connect(name: str = NAME, as_json: bool = JSON) -> None:
    """Log in to a site once, and keep the connection open.

    The commands that follow use it.

    Example: dlctl sites connect mycluster
    """
    from dlctl.site_admin.actions import connect as open_connection

    made = open_connection(name)
    known = "is open already" if made.was_open else "is open"
    text = (
        f"the connection to {made.login_node} {known}, until {format_span(made.persist_s)} after "
        "the last command"
    )
    output.report(made, as_json, lambda _: output.line(text))


def disconnect(name: str = NAME, as_json: bool = JSON) -> None:
    """End the connection that `dlctl sites connect` opened.

    Example: dlctl sites disconnect mycluster
    """
    from dlctl.site_admin.actions import disconnect as end_connection

    ended = end_connection(name)
    text = "ended" if ended.was_open else "there was none"
    output.report(
        ended, as_json, lambda _: output.line(f"the connection to {ended.login_node}: {text}")
    )


def setup(name: str = NAME, as_json: bool = JSON) -> None:
    """Install a Python for a site's nodes.

    It has torch, mpi4py, h5py, numpy and watchdog.

    Example: dlctl sites setup mycluster
    """
    from dlctl.site_admin.actions import setup_site

    answer = setup_site(name, output.ask, output.note)
    shown = {"python": answer.python, "done": "\n".join(answer.notes)}
    output.report(answer, as_json, lambda _: output.fields(shown))
    output.hint(f"dlctl doctor {name}")


def nodes(
    name: str = NAME,
    forget: str | None = typer.Option(None, "--forget", metavar="HOST", help="Use it again."),
    as_json: bool = JSON,
) -> None:
    """List the nodes that failed lately and are avoided.

    New jobs avoid them for a day.

    Example: dlctl sites nodes mycluster --forget n17
    """
    from dlctl.site_admin.actions import bad_nodes

    known = bad_nodes(name, output.ask, forget or "")
    if forget:
        output.report(known[0], as_json, lambda _: output.line(f"forgot {forget}"))
        return
    rows = [[n.host, n.kind, n.training_id, ago(time.time() - n.seen_at),
             format_span(n.expires_at - time.time()), n.reason] for n in known]  # fmt: skip
    columns = ["node", "kind", "training", "seen", "avoided for", "why"]
    output.report(known, as_json, lambda _: output.table(columns, rows, "no node is avoided"))


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
    """Test each link from here to the learners.

    It says what to fix, and skips the tests that need a broken link. Exit code 4 if a link is
    broken.

    Example: dlctl doctor mycluster --deep
    """
    if deep and site is None:
        raise typer.BadParameter("--deep needs a site: dlctl doctor SITE --deep")
    from dlctl.doctor.bundle import write_bundle
    from dlctl.doctor.chain import BROKEN
    from dlctl.doctor.examine import examine

    tell = (lambda _: None) if as_json else output.link
    found = examine(site, deep=deep, prompt=output.ask, tell=tell, note=output.note)
    output.report(found.links, as_json, lambda _: None)
    if bundle is not None:
        output.note(f"wrote {write_bundle(bundle, found, site, output.ask)}: look at it before "
                    "you send it")  # fmt: skip
    if any(link.state == BROKEN for link in found.links):
        raise typer.Exit(4)


GROUPS = {
    "sites": ("Add, set up and list clusters and machines.",
              (list_, show, add, remove, connect, disconnect, setup, nodes)),
}  # fmt: skip
