"""Read the logs of a training, once or as they grow, across attempts and lost connections.

The reader keeps an offset for each file: a new connection continues where the old one broke, so
that no line is lost and none is shown twice.

Lines of learners have no time of day, so their order is this: one attempt after the other; in each,
the job's lines until its results are stored or its verdict is made, then the servers' and learners'
lines, then the rest of the job's. When following, that rest waits until a look finds no more lines
of that attempt's other logs. A very long line comes in parts, so that it never fills the memory.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dlctl.contract import State
from dlctl.errors import TransportError
from dlctl.files.upload import read_appended
from dlctl.transport import Transport

_CHUNK_BYTES = 1024 * 1024
_LONGEST_LINE_BYTES = 1024 * 1024
"""A line that is longer than this comes in parts."""
_FASTEST_S, _SLOWEST_S = 0.2, 2.0
"""How often to look for new lines: fast while lines come, slower while none do."""
_STATE_EVERY_S = 2.0
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_NAME = re.compile(r"attempts/(\d+)/(?:(server|learner)-(\d+)\.log|slurm\.out)")
_KINDS = (None, "server", "learner")
"""In the order in which they are printed."""
_END = re.compile(rb"^\d\d:\d\d:\d\d (?:STORING|COMPLETED|FAILED|HALTED|CANCELLED): ", re.MULTILINE)
"""Where the end begins in the job's output: everything that the learners say was said before."""


@dataclass(frozen=True)
class LogPiece:
    """Whole lines of one log, or a part of a very long line: then no newline ends it."""

    attempt: int
    source: str
    """`job`, `server-<node>`, or `learner-<rank>`."""
    content: bytes


@dataclass
class LogReader:
    """Follows the logs of one job directory."""

    job_dir: str
    learner: int | None = None
    """Only this rank."""
    first_attempt: int = 1
    _offsets: dict[str, int] = field(default_factory=dict)
    _open_lines: dict[str, bytes] = field(default_factory=dict)
    _held: dict[int, bytes] = field(default_factory=dict)
    """The end of each attempt's job output, while its learners' lines are still being read."""
    _cut: set[str] = field(default_factory=set)
    """Logs whose beginning is skipped."""
    advanced: bool = False
    """Whether the last call of `news` read anything, if only a part of a long line."""

    def news(self, transport: Transport) -> list[LogPiece]:
        """Return the whole lines that have arrived since the last call, of one attempt at most."""
        found = read_appended(transport, self.job_dir, self._globs(), self._offsets, _CHUNK_BYTES)
        self.advanced = bool(found)
        numbers = {name: _order(name)[0] for name in found}
        first = min([*numbers.values(), *self._held], default=0)
        mine = {name: content for name, content in found.items() if numbers[name] == first}
        pieces = [
            piece for name, content in sorted(mine.items(), key=lambda item: _order(item[0]))
            if (piece := self._whole_lines(name, content))
        ]  # fmt: skip
        if all(_order(name)[1] == 0 for name in mine):
            pieces += self._let_go(first)
        return pieces

    def begin_at_tail(self, transport: Transport, lines: int) -> None:
        """Skip all but the last lines of each log."""
        globs = " ".join(self._globs())
        script = f"""\
cd -- {shlex.quote(self.job_dir)} 2>/dev/null || exit 0
for f in {globs}; do
    [ -f "$f" ] || continue
    size=$(wc -c <"$f") # the log may grow meanwhile
    printf '%s %s\\n' $((size - $(head -c $((size)) "$f" | tail -n {lines} | wc -c))) "$f"
done"""
        for line in transport.run(script).text.splitlines():
            skipped, _, name = line.partition(" ")
            self._offsets[name] = int(skipped)
            if int(skipped):
                self._cut.add(name)

    def rest(self) -> list[LogPiece]:
        """Return what was held back, and last lines that never got their newline."""
        left = [piece for attempt in sorted(self._held) for piece in self._let_go(attempt)]
        open_lines = [(n, c + b"\n") for n, c in self._open_lines.items()]
        self._open_lines.clear()
        return [p for n, c in open_lines if (p := self._piece(n, c))] + left

    def _whole_lines(self, name: str, content: bytes) -> LogPiece | None:
        self._offsets[name] = self._offsets.get(name, 0) + len(content)
        lines, end, rest = (self._open_lines.pop(name, b"") + content).rpartition(b"\n")
        if len(rest) >= _LONGEST_LINE_BYTES:
            cut = _character_end(rest)
            lines, end, rest = lines + end, rest[:cut], rest[cut:]
        if rest:
            self._open_lines[name] = rest
        return self._piece(name, self._before_end(name, lines + end))

    def _before_end(self, name: str, content: bytes) -> bytes:
        """Return the lines of a job's output before its end; hold back the others."""
        attempt, kind, _ = _order(name)
        if kind != 0 or self.learner is not None:
            return content
        if attempt in self._held:
            self._held[attempt] += content
            return b""
        if ended := _END.search(content):
            # Of an output without its beginning, nothing else was said before the learners' lines.
            start = 0 if name in self._cut else ended.start()
            self._held[attempt] = content[start:]
            return content[:start]
        return content

    def _let_go(self, attempt: int) -> list[LogPiece]:
        held = self._held.pop(attempt, b"")
        return [LogPiece(attempt, "job", held)] if held and attempt >= self.first_attempt else []

    def _globs(self) -> list[str]:
        if self.learner is not None:
            return [f"attempts/*/learner-{self.learner}.log"]
        return [f"attempts/*/{name}" for name in ("slurm.out", "server-*.log", "learner-*.log")]

    def _piece(self, name: str, content: bytes) -> LogPiece | None:
        found = _NAME.fullmatch(name)
        if not content or not found or int(found[1]) < self.first_attempt:
            return None
        source = "job" if found[2] is None else f"{found[2]}-{found[3]}"
        return LogPiece(int(found[1]), source, content)


def _order(name: str) -> tuple[int, int, int]:
    found = _NAME.fullmatch(name)
    return (int(found[1]), _KINDS.index(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def _character_end(content: bytes) -> int:
    """Return where the last whole character of UTF-8 ends."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 != 0x80:  # no continuation: here a character begins
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(content) if length <= back else len(content) - back
    return len(content)


def read(transport: Transport, reader: LogReader) -> Iterator[LogPiece]:
    """Yield all lines that exist now."""
    yield from reader.news(transport)
    while reader.advanced:
        yield from reader.news(transport)
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
            if time.monotonic() - asked_at > _STATE_EVERY_S:
                ended = state().final
                asked_at = time.monotonic()
            pieces = reader.news(transport)
        except TransportError as error:
            if not error.transient:
                raise
            if failures == 0:
                on_trouble(error)
            time.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1
            continue
        failures = 0
        yield from pieces
        if ended and not reader.advanced:
            yield from reader.rest()
            return
        pause_s = _FASTEST_S if reader.advanced else min(pause_s * 1.3, _SLOWEST_S)
        if not ended:
            time.sleep(pause_s)
