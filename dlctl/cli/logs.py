"""The command logs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, training
from dlctl.cli.manners import paged
from dlctl.cli.states.following import LogLines, end_of_following, follow, print_pieces

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogReader
    from dlctl.record import Record, RecordStore

_MOST_RANKS = 10_000


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
        help="Of these lines only those that this regular expression fits; the site leaves out "
        "others where it can.",
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

    pattern = _pattern(grep)
    lines = LogLines(as_json=as_json, prefix=not no_prefix, pattern=pattern)
    ranks, begin = _ranks(rank), _since(since)
    with training(training_id) as (session, record, store):
        record = _checked(session, record, store, ranks, attempt, known=tail is None)
        reader = _reader(session, record, ranks, attempt, tail, begin, pattern)
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


def _checked(
    session: Session, record: Record, store: RecordStore, ranks: list[int], attempt: int | None,
    *, known: bool,
) -> Record:  # fmt: skip
    """Return the record at its newest attempt, if that counts.

    Raises:
        RecordError: there is no such learner or attempt.
    """
    from dlctl.errors import RecordError
    from dlctl.lifecycle import check_learner, refresh

    check_learner(session, record, max(ranks, default=None))
    if known and attempt is None:
        return record
    record = refresh(session, [record], store)[0]
    if attempt is not None and attempt > record.attempt:
        there = "attempt 1" if record.attempt == 1 else f"attempts 1 to {record.attempt}"
        raise RecordError(
            f"{record.training_id} has no attempt {attempt}", hint=f"there is {there}"
        )
    return record


def _reader(
    session: Session, record: Record, ranks: list[int], attempt: int | None, tail: int | None,
    begin: tuple[float | None, float] | None, pattern: re.Pattern[str] | None,
) -> LogReader:  # fmt: skip
    from dlctl.logs.beginning import begin_at_tail, begin_since
    from dlctl.logs.matching import for_awk
    from dlctl.logs.reader import LogReader

    first = 1 if tail is None else record.attempt
    reader = LogReader(
        record.job_dir, ranks, first if attempt is None else attempt, only_attempt=attempt,
        pattern=for_awk(pattern.pattern) or "" if pattern else "",
    )  # fmt: skip
    if begin is not None:
        begin_since(reader, session.transport, at=begin[0], ago_s=begin[1])
    if tail is not None:
        begin_at_tail(reader, session.transport, tail)
    return reader


def _ranks(text: str | None) -> list[int]:
    """Return the numbers of `0,2-5`.

    Raises:
        typer.BadParameter: it is no such list.
    """
    found: set[int] = set()
    for part in (text or "").split(",") if text is not None else ():
        ends = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if ends is None:
            raise typer.BadParameter(f"--rank {text}: numbers of learners, such as 0, or 0,2-5")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or last - first >= _MOST_RANKS:
            raise typer.BadParameter(f"--rank {text}: {part.strip()} is no range")
        found |= {*range(first, last + 1)}
    return sorted(found)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise typer.BadParameter(f"--grep {text}: {error}") from None


def _since(text: str | None) -> tuple[float | None, float] | None:
    """Return a time in Unix seconds, or None and how many seconds ago.

    Raises:
        typer.BadParameter: it is neither.
    """
    from datetime import datetime, timedelta

    from dlctl.units import parse_duration

    if text is None:
        return None
    now = datetime.now().astimezone()
    if clock := re.fullmatch(r"(\d{1,2}):(\d\d)(?::(\d\d))?", text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        if hour < 24 and minute < 60 and second < 60:
            then = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
            return (then if then <= now else then - timedelta(days=1)).timestamp(), 0.0
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp(), 0.0
    except ValueError:
        pass
    try:
        return None, float(parse_duration(text))
    except ValueError as error:
        raise typer.BadParameter(
            f"--since {text}: an age such as 10m or 2h, or a time such as 14:30 or 2026-01-31T14:30"
        ) from error
