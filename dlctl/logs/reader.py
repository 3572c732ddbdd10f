"""Read the logs of a training, once or as they grow, across attempts and lost connections.

The reader keeps an offset for each file: a new connection continues where the old one broke, so
that no line is lost and none is shown twice.

Attempts come one after the other. In each, the lines of all logs are merged by the time at which
they were written, as the notes beside the logs tell it. A line without a time is the newest: of
those, the job's come first, then the servers', then the learners'. The end of the job's output,
from the moment its results are stored or its verdict is made, comes last; when following, it waits
until a look finds no more lines of that attempt's other logs.

Memory is bounded: a look reads a part of each log, prints what all logs are known up to, and reads
no further in a log of which enough waits. A very long line comes in parts.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import accumulate, groupby
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from dlctl.contract import TIMES_SUFFIX, State
from dlctl.errors import TransportError
from dlctl.files.small_files import read_appended, sizes_script
from dlctl.logs.one_log import Block, OneLog, log_of_training
from dlctl.transport import Transport
from dlctl.transport.resident import Resident

if TYPE_CHECKING:
    from dlctl.transport import Transport

_CHUNK_BYTES = 1024 * 1024
"""The most that a look reads of a file."""
_LOOK_BYTES = 64 * _CHUNK_BYTES
"""The most that a look reads of all logs, unless that would be very little of each."""
_LEAST_BYTES = 16 * 1024
_MANY = 512
"""As many logs a first look expects."""
_STAYING_S = 0.2
"""How often a shell that stays at the site looks for new lines: it starts no process for that."""
_FASTEST_S, _SLOWEST_S = 1.0, 4.0
"""How often to look without one: fast while lines come, slower while none do."""
_PAUSE_PER_LOG_S = 0.001
"""How much longer to wait for each log: a look sends the names of all, and asks for their sizes."""
STATE_EVERY_S = 2.0
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""After how long to ask a site again that did not answer so many times."""
_END_IS_TOLD = re.compile(
    rb"^\S+ (?:%s): " % b"|".join(state.value.encode() for state in State if state.final),
    re.MULTILINE,
)
"""The supervisor's line that tells how an attempt ended."""


@dataclass(frozen=True)
class LogPiece:
    """Whole lines of one log, or a part of a very long line: then no newline ends it."""

    attempt: int
    source: str
    """`job`, `server-<node>`, or `learner-<rank>`."""
    content: bytes
    times: tuple[tuple[int, float], ...] = ()
    """Where each block of the content ends, and by when it was written (Unix seconds; infinity: no
    note tells)."""

    def timed_lines(self) -> Iterator[tuple[bytes, float | None]]:
        """Yield each line, without its end, and by when it was written."""
        end, times = 0, iter(self.times)
        until, at = next(times, (end, inf))
        for line in self.content.removesuffix(b"\n").split(b"\n"):
            end += len(line) + 1
            while end > until and at < inf:
                until, at = next(times, (end, inf))
            yield line, None if at == inf else at


@dataclass(frozen=True)
class Wanted:
    """The files of a job directory that a look reads: see `read_appended`."""

    globs: list[str]
    offsets: dict[str, int | None]
    limit_bytes: int


@dataclass
class LogReader:
    """Follows the logs of one job directory."""

    job_dir: str
    ranks: Sequence[int] = ()
    """Only these learners; none: all of them, the servers and the job."""
    first_attempt: int = 1
    only_attempt: int | None = None
    by_time: bool = True
    """Whether to merge the logs by time; otherwise each comes as a whole, or in large parts."""
    log_of: Callable[[str], OneLog | None] = log_of_training
    """The log that a file is; None if it is not shown."""
    patterns: Sequence[str] = ()
    """Patterns of the files to read, below the job directory; none: a training's own."""
    _logs: dict[str, OneLog] = field(default_factory=dict)
    """By the name of the log; those of the notes are in `_by_times`."""
    _by_times: dict[str, OneLog] = field(default_factory=dict)
    _others: set[str] = field(default_factory=set)
    """Files that are not shown."""
    advanced: bool = False
    """Whether the last call of `news` read anything, if only a part of a long line."""

    @property
    def has_more(self) -> bool:
        """Return whether the last look left a part of a log unread."""
        return any(log.has_more for log in self._logs.values())

    @property
    def logs(self) -> int:
        """Return how many logs are known."""
        return len(self._logs)

    def news(self, transport: Transport, once: bool = False) -> list[LogPiece]:
        """Return the whole lines that have arrived since the last call, of one attempt at most.

        Args:
            once: whether to leave a log alone that was read to its end, even if it has grown.
        """
        wanted = self.wanted(once)
        found = read_appended(
            transport, self.job_dir, wanted.globs, wanted.offsets, wanted.limit_bytes
        )
        return self.take(wanted, found)

    def wanted(self, once: bool = False) -> Wanted:
        """Return what the next look is to read; `once` as of `news`."""
        logs = self._to_read()
        share_bytes = _LOOK_BYTES // (len(logs) or _MANY)
        limit_bytes = min(_CHUNK_BYTES, max(_LEAST_BYTES, share_bytes))
        return Wanted(self.globs(), self._offsets(logs, limit_bytes, once), limit_bytes)

    def take(self, wanted: Wanted, found: Mapping[str, bytes]) -> list[LogPiece]:
        """Take in what a look has found; return what `news` returns."""
        for name in found:
            self._log_of(name)
        for log in self._logs.values():
            notes, content = found.get(log.times_name, b""), found.get(log.name, b"")
            if notes or wanted.offsets.get(log.times_name) is not None:
                log.add_notes(notes, len(notes) >= wanted.limit_bytes)
            if content or wanted.offsets.get(log.name) is not None:
                log.add(content, len(content) >= wanted.limit_bytes)
        mine = self._of(self._current())
        pieces = _merged(mine)
        others_grew = any(log.name in found and not log.is_job for log in mine)
        if not pieces and not others_grew:
            pieces = self._end_of(mine)
        self.advanced = bool(found or pieces)
        return pieces

    def positions(self) -> dict[str, int]:
        """Return up to which byte each log was printed; `skip` begins there."""
        return {log.name: log.shown_bytes for log in self._logs.values() if log.shown_bytes}

    def skip(self, name: str, size_bytes: int, at_line: int = 0) -> None:
        """Begin to read a log, or the notes on one, at an offset, as `OneLog.skip`."""
        if (log := self._log_of(name)) is not None:
            log.skip(name, size_bytes, at_line)

    def rest(self) -> list[LogPiece]:
        """Return what was held back, and last lines that never got their newline."""
        turns = sorted({log.turn for log in self._logs.values()})
        return [piece for turn in turns for piece in _rest(self._of(turn))]

    def globs(self) -> list[str]:
        """Return patterns of the files that are read, below the job directory."""
        if self.patterns:
            return list(self.patterns)
        learners = [f"learner-{rank}" for rank in self.ranks]
        names = [f"{name}.log" for name in learners or ("server-*", "learner-*")]
        if not learners:
            names.insert(0, "slurm.out")
        if self.by_time and len(learners) != 1:
            times = learners or ("slurm", "server-*", "learner-*")
            names += [f"{name}{TIMES_SUFFIX}" for name in times]
        attempt = "*" if self.only_attempt is None else self.only_attempt
        return [f"attempts/{attempt}/{name}" for name in names]

    def _log_of(self, name: str) -> OneLog | None:
        """Return the log that a file is, or that its notes are on; None if it is not shown."""
        log = self._logs.get(name) or self._by_times.get(name)
        if log is None and (log := self.log_of(name)) and log.attempt >= self.first_attempt:
            self._logs[log.name] = log
            if log.times_name:
                self._by_times[log.times_name] = log
            return log
        if log is None or log.attempt < self.first_attempt:
            self._others.add(name)
            return None
        return log

    def _of(self, turn: int | None) -> list[OneLog]:
        return [log for log in self._logs.values() if log.turn == turn]

    def _current(self) -> int | None:
        """Return the first turn of which something is not printed yet."""
        return min((log.turn for log in self._logs.values() if not log.is_done), default=None)

    def _to_read(self) -> list[OneLog]:
        """Return the known logs without those of attempts whose turn has not come."""
        current = self._current()
        logs = self._logs.values()
        return [log for log in logs if current is None or log.turn <= current]

    def _offsets(self, logs: list[OneLog], limit_bytes: int, once: bool) -> dict[str, int | None]:
        offsets: dict[str, int | None] = dict.fromkeys(
            [*self._others, *self._by_times, *self._logs]
        )
        for log in logs:
            if once and log.is_read:
                continue
            if log.waits_bytes < limit_bytes:
                offsets[log.name] = log.offset
            if log.times_name and log.needs_notes(limit_bytes):
                offsets[log.times_name] = log.times_offset
        return offsets

    def _end_of(self, logs: list[OneLog]) -> list[LogPiece]:
        """Return the end of an attempt of which nothing else can be printed now."""
        others = [log for log in logs if not log.is_job]
        if any(log.has_more or log.waits_bytes for log in others):
            return []
        is_over = any(log.turn > logs[0].turn for log in self._logs.values() if logs)
        if any(log.is_open for log in others) and not is_over:
            return []
        return _rest(logs, with_open_lines=is_over and not any(log.has_more for log in logs))


def _merged(logs: list[OneLog]) -> list[LogPiece]:
    """Return the lines of an attempt up to the time that all its logs are known to."""
    until = min((log.complete_until for log in logs), default=inf)
    sources = groupby(merge(*(log.blocks(until) for log in logs)), key=itemgetter(2))
    return [_piece(attempt, source, list(blocks)) for (attempt, source), blocks in sources]


def _piece(attempt: int, source: str, blocks: Sequence[Block]) -> LogPiece:
    ends = accumulate(len(block[3]) for block in blocks)
    times = tuple((end, block[0]) for end, block in zip(ends, blocks, strict=True))
    return LogPiece(attempt, source, b"".join(block[3] for block in blocks), times)


def _rest(logs: list[OneLog], with_open_lines: bool = True) -> list[LogPiece]:
    logs = sorted(logs, key=lambda log: (log.is_job, log.order))
    rests = [LogPiece(log.attempt, log.source, log.rest(with_open_lines)) for log in logs]
    return [piece for piece in rests if piece.content]


def read(transport: Transport, reader: LogReader) -> Iterator[LogPiece]:
    """Yield all lines that exist now, however fast the logs grow."""
    yield from reader.news(transport, once=True)
    while reader.advanced:
        yield from reader.news(transport, once=True)
    yield from reader.rest()


def follow(
    transport: Transport,
    reader: LogReader,
    state: Callable[[], State],
    on_trouble: Callable[[TransportError], None],
) -> Iterator[LogPiece]:
    """Yield lines as they come, until the training has ended and everything has been read.

    A lost connection is opened again; `on_trouble` is called once for each loss.
    """
    pause_s, asked_at, failures, ended = _FASTEST_S, float("-inf"), 0, False
    while True:
        try:
            if time.monotonic() - asked_at > STATE_EVERY_S:
                ended = state().final
                asked_at = time.monotonic()
            pieces = reader.news(transport)
        except TransportError as error:
            if not error.transient:
                raise
            if failures == 0:
                on_trouble(error)
            time.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1
            continue
        failures = 0
        yield from pieces
        if any(piece.source == "job" and _END_IS_TOLD.search(piece.content) for piece in pieces):
            asked_at = float("-inf")  # ask for the state now
        if ended and not reader.advanced:
            yield from reader.rest()
            return
        pause_s = _FASTEST_S if reader.advanced else min(pause_s * 1.3, _SLOWEST_S)
        stays = isinstance(transport, Resident) and transport.is_there
        if not ended and not reader.has_more:
            time.sleep((_STAYING_S if stays else pause_s) + reader.logs * _PAUSE_PER_LOG_S)


_NOTE_BYTES = 32
"""A note is shorter."""
_LINE_BYTES = 4096
"""So long before a time a reader looks for the beginning of the line that was being written."""


def begin_at_tail(reader: LogReader, transport: Transport, lines: int) -> None:
    """Skip all but the last lines of each log, and the notes on what came long before them.

    Raises:
        TransportError
    """
    kept_bytes = _NOTE_BYTES * (lines + 50)
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(reader.job_dir)} 2>/dev/null || exit 0
{{
{sizes_script(reader.globs())}}} | while IFS= read -r line; do
    size=${{line%% *}} name=${{line#* }} # the log may grow meanwhile
    case $name in
        *{TIMES_SUFFIX}) [ "$size" -le {kept_bytes} ] || echo "$((size - {kept_bytes})) $name";;
        *) echo "$((size - $(head -c "$size" <"$name" | tail -n {lines} | wc -c))) $name";;
    esac
done"""
    for line in transport.run(script).lines:
        skipped, _, name = line.partition(" ")
        reader.skip(name, int(skipped))


_SINCE = r"""
FNR == 1 { tell(); name = FILENAME; log_bytes = notes_bytes = at = 0 }
$1 ~ /^[0-9]+[.][0-9]+$/ && $2 ~ /^[0-9]+$/ && $1 + 0 < since + 0 {
    log_bytes = $2; notes_bytes = at
}
{ at += length($0) + 1 }
function tell() { if (log_bytes) print log_bytes, notes_bytes, name }
END { tell() }"""


def begin_since(
    reader: LogReader, transport: Transport, *, at: float | None = None, ago_s: float = 0.0
) -> None:
    """Skip the lines that were written before a time, as the notes beside the logs tell it.

    A log without notes is read from its beginning.

    Args:
        at: Unix seconds; None: `ago_s` before now, by the site's clock.

    Raises:
        TransportError
    """
    names = {f"{name.rpartition('.')[0]}{TIMES_SUFFIX}": None for name in reader.globs()}
    since = f"$(($(date +%s) - {round(ago_s)}))" if at is None else f"{at:.3f}"
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(reader.job_dir)} 2>/dev/null || exit 0
since={since}
{{
{sizes_script([*names])}}} | sed -n 's/^[0-9]* \\(attempts[a-z0-9./-]*\\)$/\\1/p' |
    xargs awk -v since="$since" '{_SINCE}' /dev/null"""
    for line in transport.run(script).lines:
        log_bytes, notes_bytes, notes = line.split(" ", 2)
        log = f"{notes.removesuffix(TIMES_SUFFIX)}.log"  # of the job's output, too
        reader.skip(log, max(0, int(log_bytes) - _LINE_BYTES), int(log_bytes))
        reader.skip(notes, max(0, int(notes_bytes) - 1))
