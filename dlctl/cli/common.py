"""Options, open sites and the display of trainings, which the commands share."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.contract import State
from dlctl.contract.ground.amounts import format_span
from dlctl.errors import DlctlError, Misused, ResultsError

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.service.client import Client


# For shell completion; typer leaves out what does not begin with what is typed.


def complete_ids() -> list[str]:
    """Return the training ids, newest first."""
    from dlctl.record import RecordStore

    return [record.training_id for record in reversed(RecordStore().all())]


def complete_sites() -> list[str]:
    """Return the sites."""
    from dlctl.sites.files import list_sites

    return [site.name for site in list_sites()]


def complete_tags() -> list[str]:
    """Return the tags."""
    from dlctl.record import RecordStore

    return sorted({tag for record in RecordStore().all() for tag in record.tags})


def complete_states() -> list[str]:
    """Return the states."""
    return [str(state) for state in State]


def default_site() -> str:
    """Return the site of a command without `--site`."""
    from dlctl.settings import setting

    return setting("site")[0]


ID = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Training id, or a unique beginning or end of it; the latest training of this folder by "
    "default.",
)  # fmt: skip
SEARCH_ID = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Id of a search, or a unique beginning or end of it; the latest search of this folder by "
    "default.",
)  # fmt: skip
IDS = typer.Argument(
    None, metavar="ID", autocompletion=complete_ids, show_default=False,
    help="Training ids; the latest training of this folder by default.",
)  # fmt: skip
JSON = typer.Option(False, "--json", help="Print JSON.")
TRIAL = typer.Option(None, "--trial", "-t", min=0, metavar="N", help="Only this trial of a search.")
YES = typer.Option(False, "--yes", "-y", help="Don't ask; required without a terminal.")
DRY_RUN = typer.Option(False, "--dry-run", "-n", help="Only say what would go.")
SITE = typer.Option(
    ..., "--site", "-s", autocompletion=complete_sites, default_factory=default_site,
    show_default=False,
    help="The site to run on, one of `dlctl sites list`; that of `dlctl config site`, or `local`.",
)  # fmt: skip

NOTHING = "no training fits"


def _taking(
    into: str, make: Callable[..., object], options: dict[str, tuple[Any, Any]]
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Give a command options in place of a parameter, which becomes what `make` makes of them.

    Args:
        options: Type and option, by the name that `make` knows.
    """

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        @wraps(command)
        def run(**given: Any) -> object:
            made = make(**{name: given.pop(name) for name in options})
            return command(**given, **{into: made})

        known: list[inspect.Parameter] = []
        for each in inspect.signature(command).parameters.values():
            known += [each] if each.name != into else [
                each.replace(name=name, annotation=kind, default=option)
                for name, (kind, option) in options.items()
            ]  # fmt: skip
        run.__signature__ = inspect.Signature(known)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in known}
        return run

    return decorate


def _filter(name: str | None, state: list[str], tag: list[str]) -> object:
    from dlctl.service.client import Filter

    return Filter(name, state, tag)


filtered = _taking("wanted", _filter, {
    "name": (str | None, typer.Option(
        None, "--name", metavar="GLOB",
        help="All trainings whose name or id fits, such as 'digits*'.")),
    "state": (list[str], typer.Option(
        None, "--state", metavar="STATE", autocompletion=complete_states,
        help="All trainings in this state, as last known, such as TRAINING; may be given more than "
        "once.")),
    "tag": (list[str], typer.Option(
        None, "--tag", metavar="WORD", autocompletion=complete_tags,
        help="All trainings with this tag; may be given more than once.")),
})  # fmt: skip
"""Gives a command the options that make its `wanted`, a `Filter`."""
_RESOURCES = {
    "learners": (int | None, typer.Option(
        None, "--learners", min=1, help="Override `learners`.")),
    "nodes": (int | None, typer.Option(
        None, "--nodes", min=1, help="Override `nodes`, each with the same number of learners.")),
    "learners_per_node": (int | None, typer.Option(
        None, "--learners-per-node", min=1, help="Override `learners_per_node`.")),
    "gpus": (int | None, typer.Option(
        None, "--gpus", min=0, help="Override `gpus` (per learner).")),
    "cpus": (float | None, typer.Option(
        None, "--cpus", min=0.01, help="Override `cpus` (per learner).")),
    "memory": (str | None, typer.Option(
        None, "--memory", help="Override `memory` (per learner), e.g. 8GiB.")),
    "time": (str | None, typer.Option(None, "--time", help="Override `time`, e.g. 4h.")),
    "partition": (str | None, typer.Option(
        None, "--partition", help="Override `scheduler.partition`.")),
    "set": (list[str], typer.Option(
        None, "--set", metavar="KEY=VALUE",
        help="Override any key, e.g. framework.arguments.lr=0.1; give it as often as you like.")),
}  # fmt: skip


def overriding(*without: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Give a command the options that make its `overrides`, but those of these names."""

    def make(**given: Any) -> object:
        from dlctl.manifest.overrides import Overrides

        return Overrides(**given | {"set": tuple(given.get("set") or ())})

    return _taking("overrides", make, {k: v for k, v in _RESOURCES.items() if k not in without})


def client() -> Client:
    """Return what the use cases need of this terminal and its user."""
    from dlctl.record import RecordStore
    from dlctl.service.client import Client

    return Client(RecordStore(tell=output.warn), output.Shown(), output.ask)


def opened(site: str) -> closing[Session]:
    """Return a site that is open inside a `with` block."""
    return closing(client().open(site))


def ask_nothing_in_json(as_json: bool, *, answered: bool) -> None:
    """Refuse `--json` where a command would ask a question.

    Raises:
        typer.BadParameter
    """
    if as_json and not answered:
        raise typer.BadParameter("--json asks nothing: add --yes or --dry-run")


def seconds(text: str, option: str) -> int:
    """Return the duration that an option names.

    Raises:
        Misused: it is none.
    """
    from dlctl.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise Misused(str(error), option=option) from None


def moment(text: str, option: str) -> float:
    """Return the time that an option names, in Unix seconds.

    Raises:
        Misused: it is none.
    """
    from dlctl.units import parse_moment

    try:
        at, ago_s = parse_moment(text)
    except ValueError as error:
        raise Misused(str(error), option=option) from None
    return time.time() - ago_s if at is None else at


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file or folder that the user has named.

    Raises:
        ResultsError: it can't be written.
    """
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ResultsError(
            f"{path} can't be written: {why}", hint="name another place, or make room there"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file that the user has named, and print its name."""
    with writing(path):
        path.write_text(text, encoding="utf-8")
    output.line(str(path))


@contextmanager
def training(
    wanted: str | None, is_search: bool = False
) -> Iterator[tuple[Session, Record, RecordStore]]:
    """Find a training, or a search, and open its site."""
    mine = client()
    record = mine.store.find_search(wanted) if is_search else mine.store.find(wanted)
    with closing(mine.open(record.site)) as session:
        yield session, record, mine.store


def check_trial(record: Record, trial: int | None) -> None:
    """Refuse the number of a trial for a training that has none.

    Raises:
        Misused
    """
    if trial is not None and not record.is_search:
        raise Misused(f"{record.training_id} is a training, and no search", option="--trial")


searched = partial(training, is_search=True)
"""Find a search, by default the latest of this folder, and open its site."""


def ago(seconds_ago: float) -> str:
    """Return `3 min ago`."""
    return f"{format_span(seconds_ago)} ago"


def dash(value: Any, form: Callable[[Any], str] = str) -> str:
    """Return a value for a table; `-` if it is not known."""
    return "-" if value is None else form(value)


def print_record(record: Record) -> None:
    """Print one training in a few lines, and what to do next."""
    noun = "search" if record.is_search else "training"
    output.fields({
        noun: record.training_id, "state": record.state_in_words, "reason": record.reason,
        "site": record.site, "attempt": record.attempt, "job": record.job_id,
    })  # fmt: skip
    if record.hint:
        output.advice(record.hint)


def folder_name(path: Path) -> str:
    """Return a path as a person would type it here."""
    for start, short in ((Path.cwd(), "."), (Path.home(), "~")):
        if path.is_relative_to(start):
            return f"{short}/{path.relative_to(start)}"
    return str(path)


def tell_failures(failures: Sequence[DlctlError]) -> None:
    """Print all failures but the first, which ends the command.

    Raises:
        DlctlError: the first one, if there is one.
    """
    for failure in failures[1:]:
        output.error(failure.message, failure.hint)
    if failures:
        raise failures[0]


def raise_lasting(problems: dict[str, DlctlError]) -> None:
    """Tell why sites did not answer, where waiting heals nothing, as after a changed host key.

    Raises:
        DlctlError: the first such problem.
    """
    from dlctl.service.client import may_pass

    tell_failures([problem for problem in problems.values() if not may_pass(problem)])


def whole(found: list[Any]) -> Any:
    """Return one thing as itself and several as a list, as `--json` prints them."""
    return found[0] if len(found) == 1 else found
