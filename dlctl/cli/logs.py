"""The command logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, training
from dlctl.cli.manners import paged
from dlctl.cli.states.following import LogLines, end_of_following, follow, print_pieces

if TYPE_CHECKING:
    from dlctl.record import Record


def complete_attempts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the attempts that the local record knows, newest first, for shell completion."""
    from dlctl.errors import RecordError
    from dlctl.record import RecordStore

    try:
        newest = RecordStore().find(ctx.params.get("training_id")).attempt
    except RecordError:
        return []
    return [str(n) for n in range(newest, 0, -1) if str(n).startswith(incomplete)]


def logs(
    training_id: str | None = ID,
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print new lines."),
    rank: str | None = typer.Option(
        None, "--rank", "--learner", "-l", metavar="N[,M]",
        help="Only these learners, such as 0, or 0,2-5.",
    ),
    attempt: int | None = typer.Option(
        None, "--attempt", min=1, autocompletion=complete_attempts, help="Only this attempt."
    ),
    since: str | None = typer.Option(
        None, "--since", metavar="AGE|TIME",
        help="Only lines written since then: 10m, 2h, 14:30, or 2026-01-31T14:30.",
    ),
    tail: int | None = typer.Option(
        None, "--tail", "-n", min=0,
        help="Only the last so many lines of each log, of the newest attempt unless --attempt "
        "names one.",
    ),
    grep: str | None = typer.Option(
        None, "--grep", "-g", metavar="RE",
        help="Of these lines only those that this regular expression fits.",
    ),
    no_prefix: bool = typer.Option(False, "--no-prefix", help="Print no source before a line."),
    as_json: bool = typer.Option(False, "--json", help="Print each line as a JSON object."),
) -> None:  # fmt: skip
    """Print the logs, merged by time; `--follow` stays until the training ends.

    A lost connection is opened again. A progress bar is one line, in its last
    state. Tracebacks are shortened to the lines of your program; `--debug`,
    `--grep` and `--json` print all lines.

    Example: dlctl logs --follow --rank 0 --since 10m
    """
    from dlctl.lifecycle import refresh
    from dlctl.logs.reader import read
    from dlctl.service.logs import LinesWanted

    wanted = LinesWanted(rank, attempt, since, tail, grep)
    lines = LogLines(as_json=as_json, prefix=not no_prefix, wanted=wanted)
    with training(training_id) as (session, record, store):
        record, reader = wanted.reader(session, record, store)
        if stay and attempt in (None, record.attempt):
            return end_of_following(follow(session, record, store, reader, lines))
        with paged(not as_json):
            count = print_pieces(read(session.transport, reader), lines)
        if not count and tail != 0:
            _tell_nothing(refresh(session, [record], store)[0], rank, since or grep)
    return None


def _tell_nothing(record: Record, rank: str | None, chosen: str | None) -> None:
    from dlctl.record import GONE

    if record.is_gone:
        return output.note(f"{record.training_id} ({record.state}) has no logs: {GONE}")
    who = "" if rank is None else f"learner {rank} of "
    yet = "" if record.state.final else " yet"
    what = "has printed nothing" if chosen is None else "has printed no such line"
    return output.note(f"{who}{record.training_id} ({record.state}) {what}{yet}")
