"""A stream of chunks of large files: the script at the site, what is asked of it, what it answers.

The script reads requests from its standard input, a line each, so that the next chunk begins while
the one before is on its way. After each chunk comes a line with its sum, if that was asked for.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dlctl.files.listing import SHA256, SiteFile, stat_script
from dlctl.files.partial import BLOCK_BYTES, CHUNK_BYTES, Partial
from dlctl.transport.base import Process

_PIECE_BYTES = 256 * 1024
_LINE_BYTES = 400
_END_S = 30.0


class Changed(Exception):  # noqa: N818 - no fault: the file is tried again
    """A file is no longer the one that was listed."""


@dataclass(frozen=True)
class Chunk:
    """A part of a file."""

    number: int
    """Of the file, in the script of each stream; from 1."""
    offset: int
    length_bytes: int
    has_sum: bool
    """Whether the site tells the sum."""

    @property
    def request(self) -> bytes:
        """Return the line that asks for it."""
        blocks = -(-self.length_bytes // BLOCK_BYTES)
        what = "s" if self.has_sum else "n"
        return f"{self.number} {self.offset // BLOCK_BYTES} {blocks} {what}\n".encode()


@dataclass(frozen=True)
class Ended:
    """What the site says after a chunk."""

    sha256: str
    stat: str


def chunks_of(partial: Partial, number: int) -> Iterator[Chunk]:
    """Yield what is missing of a file."""
    size_bytes, offset = partial.file.size_bytes, partial.done_bytes
    while offset < size_bytes:
        end = min(size_bytes, (offset // CHUNK_BYTES + 1) * CHUNK_BYTES)
        yield Chunk(number, offset, end - offset, not partial.file.sha256)
        offset = end


def stream_script(base: str, files: Sequence[SiteFile], mark: str) -> str:
    """Return the script of one stream."""
    names = " ".join(shlex.quote(f"./{file.path}") for file in files)
    return f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(base)} || exit 71
{SHA256}
exec 5>&1
part() {{ dd if="$1" bs={BLOCK_BYTES} skip="$2" count="$3" 2>/dev/null; }}
state() {{ {stat_script('"$1"')}; }} 2>/dev/null
set -- {names}
while read -r number skip count what; do
    eval "f=\\${{$number}}"
    sum= stat=
    if [ "$what" = n ]; then part "$f" "$skip" "$count"
    elif [ -e /dev/fd/5 ]; then
        sum=$({{ part "$f" "$skip" "$count" | tee /dev/fd/4 >&5; }} 4>&1 | sha256)
        stat=$(state "$f")
    else part "$f" "$skip" "$count"; stat=$(state "$f")
    fi
    printf '\\n%s %s %s\\n' {mark} "${{sum:--}}" "$stat"
done
exit 0"""


class Stream:
    """One script at the site that sends chunks, and what was asked of it."""

    def __init__(self, process: Process, mark: str) -> None:
        self._process = process
        self._mark = mark
        self._asked = 0

    def ask(self, chunk: Chunk) -> None:
        """Ask for a chunk."""
        self._asked += 1
        with contextlib.suppress(BrokenPipeError):  # reading says why
            self._process.stdin.write(chunk.request)

    def answered(self) -> None:
        """Note that the oldest chunk that was asked for is being read."""
        self._asked -= 1

    def __len__(self) -> int:
        return self._asked

    def pieces(self, chunk: Chunk) -> Iterator[bytes]:
        """Yield the content of a chunk.

        Raises:
            Changed: the site's file is shorter.
        """
        missing_bytes = chunk.length_bytes
        stdout: Any = self._process.stdout
        mark, last = self._mark.encode(), b""
        while missing_bytes:
            piece = stdout.read1(min(missing_bytes, _PIECE_BYTES))
            last = (last + piece[-_LINE_BYTES:])[-_LINE_BYTES:]
            # Nothing more comes behind the line that follows a chunk, unless it was asked for.
            if not piece or (last.endswith(b"\n") and mark in last):
                raise Changed
            missing_bytes -= len(piece)
            yield piece

    def ended(self) -> Ended:
        """Return what follows a chunk.

        Raises:
            Changed: the site's file is longer or shorter, so that this is something else.
        """
        stdout: Any = self._process.stdout
        empty, line = stdout.readline(1), stdout.readline(_LINE_BYTES)
        if empty != b"\n" or not line.endswith(b"\n"):
            raise Changed
        mark, _, rest = line.decode(errors="replace").strip().partition(" ")
        if mark != self._mark:
            raise Changed
        digest, _, stat = rest.partition(" ")
        return Ended("" if digest == "-" else digest, stat)

    def finish(self) -> None:
        """End the script."""
        self._process.wait(_END_S)

    def kill(self) -> None:
        """End the script at once."""
        self._process.kill()
