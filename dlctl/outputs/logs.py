"""Read the logs of a training, once or as they grow, across attempts and lost connections.

The reader keeps an offset for each file: a new connection continues where the old one broke, so
that no line is lost and none is shown twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dlctl.contract import State
from dlctl.errors import TransportError
from dlctl.files.upload import read_appended
from dlctl.transport import Transport

_CHUNK_BYTES = 1024 * 1024
_FASTEST_S, _SLOWEST_S = 0.2, 2.0
"""How often to look for new lines: fast while lines come, slower while none do."""
_STATE_EVERY_S = 2.0
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_NAME = re.compile(r"attempts/(\d+)/(?:(server|learner)-(\d+)\.log|slurm\.out)")
_KINDS = (None, "server", "learner")
"""In the order in which they are printed."""


@dataclass(frozen=True)
class LogPiece:
    """Whole lines of one log."""

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
    advanced: bool = False
    """Whether the last call of `news` read anything, if only a part of a long line."""

    def news(self, transport: Transport) -> list[LogPiece]:
        """Return the whole lines that have arrived since the last call."""
        pieces = []
        found = read_appended(transport, self.job_dir, self._globs(), self._offsets, _CHUNK_BYTES)
        self.advanced = bool(found)
        for name, content in sorted(found.items(), key=lambda item: _order(item[0])):
            self._offsets[name] = self._offsets.get(name, 0) + len(content)
            lines, end, rest = (self._open_lines.pop(name, b"") + content).rpartition(b"\n")
            if rest:
                self._open_lines[name] = rest
            if end and (piece := self._piece(name, lines + end)):
                pieces.append(piece)
        return pieces

    def rest(self) -> list[LogPiece]:
        """Return last lines that never got their newline."""
        left = [self._piece(name, content + b"\n") for name, content in self._open_lines.items()]
        self._open_lines.clear()
        return [piece for piece in left if piece]

    def _globs(self) -> list[str]:
        if self.learner is not None:
            return [f"attempts/*/learner-{self.learner}.log"]
        return [f"attempts/*/{name}" for name in ("slurm.out", "server-*.log", "learner-*.log")]

    def _piece(self, name: str, content: bytes) -> LogPiece | None:
        found = _NAME.fullmatch(name)
        if not found or int(found[1]) < self.first_attempt:
            return None
        source = "job" if found[2] is None else f"{found[2]}-{found[3]}"
        return LogPiece(int(found[1]), source, content)


def _order(name: str) -> tuple[int, int, int]:
    found = _NAME.fullmatch(name)
    return (int(found[1]), _KINDS.index(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


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
