"""The `dlctl` command: builds the app, runs it, turns errors into one sentence and an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dlctl import __version__
from dlctl.cli import output
from dlctl.errors import DlctlError, ManifestError, Misused

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_PROBLEMS = 20
"""How many lines of one failure to show: thousands of files in a folder may be unfit to send."""


class _ReaderGone(Exception):  # noqa: N818
    """The reader of a pipe closed it. Not an OSError, which click turns into exit code 1."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> object:
        """Run the command, and write the rest of the buffer."""
        try:
            answer: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as closed:
            raise _ReaderGone from closed
        return answer


class _Command(TyperCommand):
    def invoke(self, ctx: Any) -> object:
        """Run the command; show what makes no sense as a wrong option, with its usage."""
        try:
            return super().invoke(ctx)
        except Misused as error:
            raise typer.BadParameter(error.message, ctx, param_hint=error.option) from None


app = typer.Typer(
    name="dlctl",
    cls=_Commands,
    help="Deep learning as a service on any Slurm cluster, driven from your laptop.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 2 usage, 3 manifest, 4 site, 5 plan, 6 connection, 7 scheduler, "
    "8 no such training, 9 results, 10 the training failed, 130 Ctrl-C, 141 closed pipe.",
)


def _print_version(asked: bool) -> None:
    if asked:
        output.line(f"dlctl {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    debug: bool = typer.Option(
        False, "--debug", help="Show whole tracebacks, of dlctl's own errors and in `dlctl logs`."
    ),
    _: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    if debug:
        os.environ["DLCTL_DEBUG"] = "1"


@app.command()
def version(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print the version.

    Example: dlctl version --json
    """
    known = {"version": __version__}
    output.report(known, as_json, lambda v: output.line(f"dlctl {v['version']}"))


def _register() -> None:
    from dlctl.cli import costs, fetch, folders, jobs, manifests, reading, room, sites
    from dlctl.cli.logs import logs
    from dlctl.cli.manners import config, schema
    from dlctl.cli.measured import dashboard, metrics, watch
    from dlctl.cli.searching import search
    from dlctl.cli.serving import serve
    from dlctl.cli.stored import models

    for each in (
        manifests.init, manifests.validate, manifests.render, schema, costs.suggest,
        costs.rehearse, manifests.submit, *jobs.COMMANDS, manifests.tag, reading.list_,
        reading.status, reading.show, fetch.fetch, logs, metrics, watch, dashboard, serve,
        costs.report, fetch,
        fetch.export, models, search, sites, folders, config, room.adopt, sites.doctor, room.du,
        room.prune,
    ):  # fmt: skip
        if not isinstance(each, ModuleType):
            _add(app, each)
        else:
            for name, (text, commands) in each.GROUPS.items():
                group = typer.Typer(no_args_is_help=True, help=text)
                _add(group, *commands)
                app.add_typer(group, name=name)
    # `dlctl checkpoints save` is the documented name; this is what people type.
    app.command("checkpoint", hidden=True)(jobs.save)
    _set_class(app)


def _add(group: typer.Typer, *commands: Callable[..., object]) -> None:
    """Add commands, each by the first word of its name."""
    for command in commands:
        group.command(command.__name__.partition("_")[0])(command)


def _set_class(group: typer.Typer) -> None:
    for command in group.registered_commands:
        command.cls = _Command
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        _set_class(inner.typer_instance)


def _drop_parameters(group: typer.Typer) -> None:
    """Keep only what the list of all commands shows, names and first sentences: a tenth faster."""
    for command in group.registered_commands:
        assert command.callback is not None

        def stub() -> None: ...

        stub.__name__, stub.__doc__ = command.callback.__name__, command.callback.__doc__
        command.callback = stub
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _drop_parameters(inner.typer_instance)


def main() -> None:
    """Run the command line; never returns."""
    _open_closed_streams()
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    if len(arguments) < len(sys.argv) - 1:
        os.environ["DLCTL_DEBUG"] = "1"
    for stream in (sys.stdout, sys.stderr):  # names of files may be any bytes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=output.REPLACING)
    try:
        _register()
        if arguments in (["--help"], ["-h"]):
            _drop_parameters(app)
        app(arguments)
    except DlctlError as failure:
        sys.exit(_explain(failure))
    except (BrokenPipeError, _ReaderGone):
        _drop_output()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as fault:
        if told := _about_surroundings(fault):
            output.error(*told)
            sys.exit(1)
        if os.environ.get("DLCTL_DEBUG"):
            raise
        output.error(
            f"internal error in dlctl: {type(fault).__name__}: {fault}",
            "run the same command with --debug and report what it prints",
        )
        sys.exit(1)


def _open_closed_streams() -> None:
    """Let output that nobody wants go nowhere; else the next file would get its descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            setattr(sys, name, nowhere)


def _about_surroundings(fault: Exception) -> tuple[str, str] | None:
    """Return what is wrong with what dlctl was started in, and what to do, if it is that."""
    if isinstance(fault, OSError) and fault.errno in _FULL:
        _drop_output()
        where = fault.filename or "standard output"
        return f"{where} can't be written: {fault.strerror}", "free space there"
    try:
        Path.cwd(), Path.home()
    except FileNotFoundError:
        return "the current folder is gone: somebody has removed it", "cd to another folder"
    except RuntimeError:
        return "there is no home folder: HOME is not set, and this user has none", "set HOME"
    return None


def _drop_output() -> None:
    """Let Python's last flush of standard output succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(failure: DlctlError) -> int:
    if os.environ.get("DLCTL_DEBUG"):
        import traceback

        traceback.print_exception(failure)
    if isinstance(failure, ManifestError):
        shown = failure.problems
        if len(shown) > _MOST_PROBLEMS:
            more = len(shown) - _MOST_PROBLEMS
            shown = [*shown[:_MOST_PROBLEMS], f"and {more} more; fix these, then try again"]
        for problem in shown[:-1]:
            output.error(problem)
        output.error(shown[-1], failure.hint)
    else:
        output.error(failure.message, failure.hint)
    return failure.exit_code
