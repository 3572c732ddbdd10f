"""The options that say which trainings a command is about, and what is printed about each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from dlctl.cli import output
from dlctl.cli.common import print_record
from dlctl.contract import State
from dlctl.errors import DlctlError
from dlctl.service.describe import plain

if TYPE_CHECKING:
    from dlctl.service.verbs import Done, WouldEnd


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


def print_done(done: Done, as_json: bool) -> None:
    """Print what became of trainings.

    Raises:
        DlctlError: the first failure.
    """
    known = done.known
    if done.is_one and known:
        output.report(plain(known[0]), as_json, lambda _: print_record(known[0]))
    elif known or not done.failures:
        rows = [[each.training_id, str(each.state), each.reason] for each in known]
        output.report([plain(each) for each in known], as_json, lambda _: output.table(
            ["training", "state", "reason"], rows, NOTHING))  # fmt: skip
    tell_failures(done.failures)


def print_would(would: Sequence[WouldEnd], as_json: bool) -> None:
    """Print what would become of trainings."""
    rows = [[each.training_id, each.site, each.state, each.would, each.lost] for each in would]
    columns = ["training", "site", "state", "would", "lost"]
    output.report(would, as_json, lambda _: output.table(columns, rows, NOTHING))


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
