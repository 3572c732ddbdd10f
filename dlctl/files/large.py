"""Brings large files by one stream: of each what is missing, in parts with the sum of each.

The sums are the site's, made in the pass that sends; a file whose sum is known comes in one part.
Once the stream has begun, nothing more is asked of the site: a link of any length stays full.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dlctl.contract.ground.safe_text import printable
from dlctl.errors import TransferError, TransportError
from dlctl.files.listing import IDLE_TIMEOUT_S, SHA256, parsed_stat, stat_script
from dlctl.files.partial import BLOCK_BYTES, CHUNK_BYTES, Partial
from dlctl.transport.base import Process, Transport

_PIECE_BYTES = 256 * 1024
_LINE_BYTES = 400
_END_S = 30.0


class _Changed(Exception):  # noqa: N818 - no fault: the file is tried again
    """A file is no longer the one that was listed."""


def bring(
    transport: Transport, base: str, files: Sequence[Partial], on_arrived: Callable[[int], None]
) -> Iterator[tuple[Partial, bool]]:
    """Yield each file that has arrived, and whether it is whole; False: it has changed.

    A file that has changed ends the stream, because nothing tells where the next one begins: files
    behind it are not yielded.

    Args:
        files: What to bring.
        on_arrived: Called with the size of each piece, and with a negative one for what has to be
            sent again.

    Raises:
        TransferError: what has arrived is not what was sent.
        TransportError
    """
    for partial in files:
        if partial.done_bytes:  # only reading it tells how much of it can be trusted
            partial.open()
    mark = secrets.token_hex(16)
    process = transport.start(_script(base, files, mark), idle_timeout_s=IDLE_TIMEOUT_S)
    try:
        for partial in files:
            try:
                _bring_one(transport.name, process, mark, partial, on_arrived)
            except _Changed:
                on_arrived(-partial.done_bytes)
                partial.drop()
                yield partial, False
                return
            yield partial, True
        process.wait(_END_S)
    finally:
        with contextlib.suppress(TransportError):
            process.kill()
        for partial in files:
            partial.close()


def _script(base: str, files: Sequence[Partial], mark: str) -> str:
    """Return a script that sends what is missing; behind each part come its sum and its `stat`."""
    sends = []
    for partial in files:
        blocks = -(-partial.file.size_bytes // BLOCK_BYTES)
        part = blocks if partial.file.sha256 else CHUNK_BYTES // BLOCK_BYTES
        name = shlex.quote(f"./{partial.file.path}")
        skip = -(-partial.done_bytes // BLOCK_BYTES)
        sends.append(f"send {name} {skip} {blocks} {part} {'n' if partial.file.sha256 else 's'}")
    lines = "\n".join(sends)
    return f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(base)} || exit 71
{SHA256}
exec 5>&1
part() {{ dd if="$1" bs={BLOCK_BYTES} skip="$2" count="$3" 2>/dev/null; }}
send() {{ # file, blocks to skip, blocks in all, blocks in a part, s: with a sum
    skip=$2
    while [ "$skip" -lt "$3" ]; do
        count=$(($4 - skip % $4)) sum=
        if [ "$5" = s ] && [ -e /dev/fd/5 ]; then
            sum=$({{ part "$1" "$skip" "$count" | tee /dev/fd/4 >&5; }} 4>&1 | sha256)
        else part "$1" "$skip" "$count"
        fi
        printf '\\n%s %s %s\\n' {mark} "${{sum:--}}" "$({{ {stat_script('"$1"')}; }} 2>/dev/null)"
        skip=$((skip + count))
    done
}}
{lines}
exit 0"""


def _bring_one(
    name: str, process: Process, mark: str, partial: Partial, on_arrived: Callable[[int], None]
) -> None:
    partial.open()
    file, resumed = partial.file, partial.done_bytes > 0
    while partial.done_bytes < file.size_bytes:
        end = file.size_bytes
        if not file.sha256:
            end = min(end, (partial.done_bytes // CHUNK_BYTES + 1) * CHUNK_BYTES)
        while missing_bytes := end - partial.done_bytes:
            stdout: Any = process.stdout
            if not (piece := stdout.read1(min(missing_bytes, _PIECE_BYTES))):
                raise _Changed
            partial.write(piece)
            on_arrived(len(piece))
        digest, stat = _behind_part(process, mark)
        if not file.sha256:
            if not stat or parsed_stat(file.path, stat).stamp != file.stamp:
                raise _Changed  # or it is gone
            if not partial.end_chunk(digest):
                partial.drop()
                raise damaged(name, file.path)
    if file.sha256 and partial.sha256 != file.sha256:
        if resumed:  # perhaps it was the beginning
            raise _Changed
        partial.drop()
        raise damaged(name, file.path)


def _behind_part(process: Process, mark: str) -> tuple[str, str]:
    """Return the part's sum, if the site makes one, and the file's line of `stat`.

    Raises:
        _Changed: the site's file is longer or shorter, so that this is something else.
    """
    stdout: Any = process.stdout
    empty, line = stdout.readline(1), stdout.readline(_LINE_BYTES)
    found, _, rest = line.decode(errors="replace").strip().partition(" ")
    if empty != b"\n" or not line.endswith(b"\n") or found != mark:
        raise _Changed
    digest, _, stat = rest.partition(" ")
    return "" if digest == "-" else digest, stat


def damaged(name: str, path: str) -> TransferError:
    """Return the error of a file that came with another sum than it must have."""
    return TransferError(
        f"{name}: {printable(path)} is damaged or still being written: its "
        "sha256 differs from the one listed",
        hint="Try again; if it happens again, the file on the site is damaged.",
    )
