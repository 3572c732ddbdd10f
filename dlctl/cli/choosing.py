"""Which trainings a command is about: those with these ids, or all that fit what options say."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dlctl.cli import output
from dlctl.cli.common import opened, plain, print_record
from dlctl.contract import State
from dlctl.errors import DlctlError, HasEnded

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore


def complete_tags(incomplete: str) -> list[str]:
    """Return the tags with this beginning, for shell completion."""
    from dlctl.record import RecordStore

    tags = {tag for record in RecordStore().all() for tag in record.tags}
    return sorted(tag for tag in tags if tag.startswith(incomplete))


def complete_states(incomplete: str) -> list[str]:
    """Return the states with this beginning, for shell completion."""
    return [str(state) for state in State if state.value.startswith(incomplete)]


NAME = typer.Option(None, "--name", metavar="GLOB",
                    help="All trainings whose name or id fits, such as 'digits*'.")  # fmt: skip
STATE = typer.Option(None, "--state", metavar="STATE", autocompletion=complete_states,
                     help="All trainings in this state, as last known, such as TRAINING; may be "
                     "given more than once.")  # fmt: skip
TAG = typer.Option(None, "--tag", metavar="WORD", autocompletion=complete_tags,
                   help="All trainings with this tag; may be given more than once.")  # fmt: skip
NOTHING = "no training fits"
T = TypeVar("T")


@dataclass(frozen=True)
class Filter:
    """What trainings must fit.

    Args:
        name: A pattern of the shell, for the name or the id; None: any.
        states: Words; empty: any.
        tags: Words that it must have, all of them.

    Raises:
        typer.BadParameter: a word is no state.
    """

    name: str | None = None
    states: Sequence[str] = ()
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        known = [str(state) for state in State]
        for word in self.states:
            if word.upper() not in known:
                raise typer.BadParameter(f"{word!r} is no state; there are {', '.join(known)}")

    def __bool__(self) -> bool:
        return self.name is not None or bool(self.states or self.tags)

    def fits(self, record: Record) -> bool:
        """Return whether a training fits."""
        name = self.name
        named = name is None or any(
            fnmatch.fnmatchcase(text, name) for text in (record.name, record.training_id)
        )
        in_state = not self.states or str(record.state) in map(str.upper, self.states)
        return named and in_state and set(self.tags) <= set(record.tags)


def fitting(name: str | None, states: Sequence[str] | None, tags: Sequence[str] | None) -> Filter:
    """Return what options say that trainings must fit.

    Raises:
        typer.BadParameter: a word is no state.
    """
    return Filter(name, states or (), tags or ())


def chosen(store: RecordStore, ids: Sequence[str] | None, wanted: Filter) -> list[Record]:
    """Return the trainings with these ids; without ids those that fit, or the folder's latest.

    Raises:
        typer.BadParameter: there are ids and a filter.
        RecordError: an id is nobody's, or several trainings'.
    """
    if ids and wanted:
        raise typer.BadParameter(
            "either ids, or --name, --state and --tag, say which trainings are meant"
        )
    if not wanted:
        return store.find_all(ids or [])
    return [record for record in store.all() if wanted.fits(record)]


def at_sites(
    records: Sequence[Record], store: RecordStore,
    do_all: Callable[[Session, list[Record], RecordStore], list[T | DlctlError]],
) -> tuple[list[T], list[DlctlError]]:  # fmt: skip
    """Do something with the trainings of each site, by one connection a site.

    What fails for one site leaves the others alone.

    Returns:
        What was done, and the failures.
    """
    done: list[T] = []
    failures: list[DlctlError] = []
    for site in dict.fromkeys(record.site for record in records):
        try:
            with opened(site) as session:
                mine = [record for record in records if record.site == site]
                answers = do_all(session, mine, store)
        except DlctlError as error:
            failures.append(error)
        else:
            failures += [answer for answer in answers if isinstance(answer, DlctlError)]
            done += [answer for answer in answers if not isinstance(answer, DlctlError)]
    return done, failures


def one_by_one(
    do: Callable[[Session, Record, RecordStore], T],
) -> Callable[[Session, list[Record], RecordStore], list[T | DlctlError]]:
    """Return what `at_sites` takes for something that is done with one training at a time."""

    def do_all(session: Session, records: list[Record], store: RecordStore) -> list[T | DlctlError]:
        answers: list[T | DlctlError] = []
        for record in records:
            try:
                answers.append(do(session, record, store))
            except DlctlError as error:  # the others are tried all the same
                answers.append(error)
        return answers

    return do_all


def do_each(
    records: Sequence[Record], store: RecordStore,
    do_all: Callable[[Session, list[Record], RecordStore], list[Record | DlctlError]],
    as_json: bool, wanted: Filter,
) -> None:  # fmt: skip
    """Do something with trainings that run, and print what became of them.

    One that has ended meanwhile is a failure only if it was named.

    Raises:
        DlctlError: the first failure, after the others were tried.
    """
    known, failures = at_sites(records, store, do_all)
    if wanted:
        for ended in (each for each in failures if isinstance(each, HasEnded)):
            output.note(ended.message)
        failures = [each for each in failures if not isinstance(each, HasEnded)]
    if len(records) == 1 and known:
        output.report(plain(known[0]), as_json, lambda _: print_record(known[0]))
    elif known or not failures:
        rows = [[each.training_id, str(each.state), each.reason] for each in known]
        output.report([plain(each) for each in known], as_json, lambda _: output.table(
            ["training", "state", "reason"], rows, NOTHING))  # fmt: skip
    tell_failures(failures)


def tell_failures(failures: Sequence[DlctlError]) -> None:
    """Print all failures but the first, which ends the command.

    Raises:
        DlctlError: the first one, if there is one.
    """
    for failure in failures[1:]:
        output.error(failure.message, failure.hint)
    if failures:
        raise failures[0]


def whole(found: list[Any]) -> Any:
    """Return one thing as itself and several as a list, as `--json` prints them."""
    return found[0] if len(found) == 1 else found
