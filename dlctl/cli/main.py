"""The `dlctl` command: finds and runs a command, turns errors into a sentence and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from dlctl import __version__
from dlctl.cli import output
from dlctl.errors import DlctlError, ManifestError, Misused, in_words

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG)
_WIDEST = 60
"""The most characters of a command's line in a list of commands."""
_MOST_PROBLEMS = 20
"""How many lines of one failure to show: thousands of files in a folder may be unfit to send."""


class _ReaderGone(Exception):  # noqa: N818
    """The reader of a pipe closed it. Not an OSError, which click turns into exit code 1."""


_HelpFormatter: Any = typer.Context.formatter_class


class _Formatter(_HelpFormatter):  # type: ignore[misc]
    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and texts; on a narrow terminal a text begins below a long name."""
        super().write_dl(rows, min(col_max, self.width // 2 - 7), col_spacing)


class _Context(typer.Context):
    formatter_class = _Formatter


class _Commands(TyperGroup):
    context_class = _Context

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return a context whose help fits the terminal; click takes 50 columns at least."""
        if parent is None:
            import shutil

            extra["terminal_width"] = min(80, shutil.get_terminal_size().columns) - 2
        return super().make_context(info_name, args, parent, **extra)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each command."""
        formatter.write_usage(ctx.command_path, "COMMAND [ARGUMENTS]")
        formatter.write_paragraph()
        formatter.write_text(self.help)
        for rows in self.panels():
            formatter.write_paragraph()
            formatter.write_dl(rows)
        if self.epilog:
            formatter.write_paragraph()
            formatter.write_text(self.epilog)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Answer an old spelling with the new one."""
        with output.failing_in_json("--json" in args):
            return self._resolve(ctx, args)

    def _resolve(self, ctx: Any, args: list[str]) -> Any:
        words = args[0] if ctx.parent is None else f"{ctx.info_name} {args[0]}"
        if args[0] not in self.commands and words in _OLD_SPELLINGS:
            rest = ["--deep" if each == "--on-node" else each for each in args[1:]]
            if words.startswith("search ") and all(each.startswith("-") for each in rest):
                rest.append("ID")  # without one it meant the latest search
            now = shlex.join(["dlctl", *_OLD_SPELLINGS[words].split(), *rest])
            raise Misused(f"`dlctl {words}` is now: {now}")
        if ctx.parent is None and (known := _OTHER_WORDS.get(args[0])):
            raise Misused(f"there is no `dlctl {args[0]}`: {known}")
        return super().resolve_command(ctx, args)

    def panels(self) -> Iterator[list[tuple[str, str]]]:
        """Yield lists of names and texts."""
        yield [(f"{name:11}", each.get_short_help_str(_WIDEST))
               for name, each in self.commands.items()]  # fmt: skip

    def invoke(self, ctx: Any) -> object:
        """Run the command, and write the rest of the buffer."""
        try:
            answer: object = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as closed:
            raise _ReaderGone from closed
        return answer


class _All(_Commands):
    """All commands; the module of one is imported once it is called."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.commands: Any = _Imported()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of the commands; import none."""
        return [*self.commands]

    def panels(self) -> Iterator[list[tuple[str, str]]]:
        """Yield each panel behind its name; no command's parameters are built for that."""
        width = max(map(len, PANELS)) + 2
        for panel, places in PANELS.items():
            heads = [panel, *[""] * len(places)]
            yield [(f"{head:{width}}{_name(place):11}", _text(place))
                   for head, place in zip(heads, places, strict=False)]  # fmt: skip


class _Imported(Mapping[str, Any]):
    """Commands and groups by name, each made when it is first used."""

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)

    def __getitem__(self, name: str) -> Any:
        return _made(_PLACES[name])


_TYPES = {
    "<str>": "TEXT", "<list[str]>": "TEXT", "<path>": "PATH", "<int>": "N", "<int range>": "N",
    "<float>": "X", "<float range>": "X",
}  # fmt: skip


def _type_name(display: Callable[[Any], str] | None, ctx: Any) -> str:
    """Return the word for an option's type; an argument has its name."""
    shown = display(ctx) if display else ""
    return _TYPES.get(shown, shown)


class _Command(TyperCommand):
    context_class = _Context

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        for each in cast("list[Any]", self.params):  # help has words for Python's types
            is_argument = each.param_type_name == "argument"
            each.display_type = partial(_type_name, None if is_argument else each.display_type)
            each.metavar = each.metavar or (each.name.upper() if is_argument else None)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments as `NAME [ID]...`, where typer has `{NAME} [[ID]]...`."""
        pieces = [re.sub(r"[{}]|(?<=\[)\[|\](?=\])", "", each)
                  for each in super().collect_usage_pieces(ctx)]  # fmt: skip
        return [each.replace("…...", "…") for each in pieces]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse; say in dlctl's words what pydantic, by which typer reads a value, refuses."""
        try:
            with output.failing_in_json("--json" in args):
                try:
                    return super().parse_args(ctx, args)
                except Exception as error:
                    command, option = ctx.info_name, getattr(error, "option_name", "")
                    way = option and (_OTHER_OPTIONS.get((command, option))
                                      or _OTHER_OPTIONS.get((command, "")))  # fmt: skip
                    if way and isinstance(error, typer.TyperException):
                        error.message += f"; {way}"
                    raise
        except typer.BadParameter as error:
            if faults := getattr(error.__cause__, "errors", None):
                from dlctl.manifest.errors import shown

                # typer has escaped what a terminal would obey
                fault = faults()[0] | {"msg": error.message}
                error.message = in_words(fault, shown(fault["input"], ()))
            raise

    def invoke(self, ctx: Any) -> object:
        """Run the command; show what makes no sense as a wrong option, with its usage."""
        try:
            with output.failing_in_json(ctx.params.get("as_json", False)):
                return super().invoke(ctx)
        except Misused as error:
            raise typer.BadParameter(error.message, ctx, param_hint=error.option) from None


app = typer.Typer(
    name="dlctl",
    cls=_All,
    help="Deep learning as a service on any Slurm cluster, driven from your laptop.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`dlctl COMMAND --help` explains a command; `man dlctl` all, and the exit codes. "
    "dlctl's own options are --debug, --version and --install-completion.",
)


_OTHER_OPTIONS = {
    ("submit", ""): "those of your program stand in the manifest, of which --set changes a key",
    ("resume", "--set"): "it goes on with the manifest as it was; `dlctl submit --from ID` trains "
    "anew, with --set, and the command tune changes the learning rate",
    **dict.fromkeys([("show", "--tag"), ("show", "--name"), ("show", "--state")],
                    "it shows one training; status and list take several"),
}  # fmt: skip
"""Options of a command that others have, each with its way."""


def _print_version(wanted: bool) -> None:
    if wanted:
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


PANELS = {
    "Run": ("manifests.init", "manifests.validate", "manifests.render", "costs.suggest",
            "costs.rehearse", "manifests.submit", "jobs.tune", "jobs.halt", "jobs.resume",
            "jobs.cancel"),
    "Look": ("reading.list_", "reading.status", "reading.show", "logs.logs", "metrics.metrics",
             "metrics.watch", "jobs.wait", "reading.diff", "metrics.dashboard", "metrics.serve"),
    "Results": ("fetch.fetch", "fetch.export", "fetch.checkpoints", "models.models"),
    "Many": ("search.search", "jobs.tag", "jobs.note", "costs.report"),
    "Sites": ("sites.doctor", "sites.sites", "plugins.frameworks", "plugins.stores"),
    "Upkeep": ("jobs.delete", "upkeep.du", "upkeep.prune", "upkeep.adopt", "upkeep.config",
               "upkeep.schema"),
}  # fmt: skip
"""Where each command is: a function of a module of `dlctl.cli`, or a group in its `GROUPS`."""

_OLD_SPELLINGS = {
    "version": "--version", "checkpoint": "checkpoints save", "sites check": "doctor",
    **{f"search {verb}": verb for verb in (
        "status", "watch", "show", "logs", "halt", "resume", "cancel")},
}  # fmt: skip


_OTHER_WORDS = {
    word: sentence
    for words, sentence in (
        ("stop kill abort terminate pause scancel",
         "`dlctl halt ID` saves and stops a training, `dlctl cancel ID` ends it"),
        ("rm remove del", "`dlctl delete ID` removes a training that has ended"),
        ("ls ps queue jobs top history squeue sacct", "`dlctl list` shows your trainings"),
        ("run start train launch sbatch srun queue-job", "`dlctl submit` starts a training"),
        ("restart rerun retry requeue continue", "`dlctl resume ID` continues from the newest "
         "checkpoint, `dlctl submit --from ID` trains anew"),
        ("cat tail attach stdout log", "`dlctl logs --follow ID` prints what a training writes"),
        ("info describe inspect", "`dlctl show ID` explains a training"),
        ("get download pull cp scp sync rsync", "`dlctl fetch ID` brings results here"),
        ("ssh shell exec", "`dlctl show ID` names the job's nodes and its folder; ssh to the site"),
        ("login configure auth connect", "your ssh logs you in: `dlctl sites add NAME user@host` "
         "names a cluster, `dlctl doctor NAME` tests each link to it"),
        ("ui web gui tensorboard", "`dlctl dashboard` shows your trainings in the browser"),
        ("plot chart curve", "`dlctl metrics ID` draws them"),
        ("compare", "`dlctl diff A B` compares two trainings"),
        ("check lint test", "`dlctl validate` checks a manifest, `dlctl doctor SITE` a site"),
    )
    for word in words.split()
}  # fmt: skip
"""What people type who come from other tools."""


def _name(place: str) -> str:
    """Return the first word of a function's name, which is its command's: `list` of `list_`."""
    return place.rpartition(".")[2].partition("_")[0]


_PLACES = {_name(place): place for places in PANELS.values() for place in places}


def _found(place: str) -> Any:
    """Return a command's function; of a group its text and its functions."""
    module, _, name = place.partition(".")
    known = importlib.import_module(f"dlctl.cli.{module}")
    return getattr(known, "GROUPS", {}).get(name) or getattr(known, name)


def _text(place: str) -> str:
    found = _found(place)
    text: str = found[0] if isinstance(found, tuple) else found.__doc__
    first, end, _ = text.partition("\n")[0].partition(". ")
    return first + end.strip()


@cache
def _made(place: str) -> Any:
    found = _found(place)
    text, functions = found if isinstance(found, tuple) else (None, [found])
    group = typer.Typer(name=_name(place), cls=_Commands, no_args_is_help=True, help=text,
                        rich_markup_mode=None)  # fmt: skip
    for each in functions:
        group.command(_name(each.__name__), cls=_Command)(each)
    made = typer.main.get_group(group)
    return made if text else made.commands[_name(place)]


def main() -> None:
    """Run the command line; never returns."""
    _open_closed_streams()
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    if len(arguments) < len(sys.argv) - 1:
        os.environ["DLCTL_DEBUG"] = "1"
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    for stream in (sys.stdout, sys.stderr):  # names of files may be any bytes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=output.REPLACING)
    try:
        app(arguments)
    except DlctlError as failure:
        sys.exit(_explain(failure))
    except (BrokenPipeError, _ReaderGone):
        _drop_output()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as fault:
        if problem := _about_surroundings(fault):
            output.error(*problem)
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
    if isinstance(fault, OSError) and fault.errno in _CLOSED and fault.filename:
        return f"{fault.filename}: {fault.strerror}", f"`ls -ld {fault.filename}` shows who may"
    if isinstance(fault, RuntimeError) and str(fault).startswith("Symlink loop"):  # Python < 3.13
        return str(fault), "correct that link"
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
