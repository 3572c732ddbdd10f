"""Brings large files by one stream: of each what is missing, in parts with the sum of each.

The sums are the site's, made in the pass that sends; a file whose sum is known comes in one part.
Once the stream has begun, nothing more is asked of the site: a link of any length stays full.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dlctl.contract.ground.safe_text import printable
from dlctl.errors import TransferError, TransportError
from dlctl.files.listing import IDLE_TIMEOUT_S, SHA256, SiteFile, parsed_stat, stat_script
from dlctl.files.target import PARTIAL, write_all
from dlctl.transport.base import Process, Transport

BLOCK_BYTES = 1024 * 1024
"""The site skips whole blocks."""
CHUNK_BYTES = 16 * BLOCK_BYTES
"""A part of a file with a sum of its own."""
_KEPT_S = 14 * 86400.0


class Partial:
    """The beginning of one file.

    Args:
        file: The file there.
    """

    def __init__(self, destination: Path, base: str, file: SiteFile) -> None:
        self.file = file
        folder = destination / PARTIAL
        key = hashlib.sha256(os.fsencode(f"{base}/{file.path}")).hexdigest()[:32]
        self.path = folder / key
        self._note = folder / f"{key}.note"
        self._sums: list[str] = []
        self.done_bytes = self._trusted_bytes()
        self._digest, self._chunk = hashlib.sha256(), hashlib.sha256()
        self._out: io.FileIO | None = None

    def _trusted_bytes(self) -> int:
        """Return how long the beginning is that an earlier download has brought."""
        try:
            lines = self._note.read_text(encoding="utf-8").splitlines()
            size_bytes = self.path.lstat().st_size
            is_link = self.path.is_symlink() or self._note.is_symlink()
            if is_link or json.loads(lines[0]) != self.file.identity:
                return 0
        except (OSError, ValueError, IndexError):
            return 0
        if self.file.sha256:  # which tells at the end
            whole = size_bytes >= self.file.size_bytes
            return self.file.size_bytes if whole else size_bytes // BLOCK_BYTES * BLOCK_BYTES
        self._sums = [line for line in lines[1:] if len(line) == 64]
        trusted_bytes = min(len(self._sums) * CHUNK_BYTES, self.file.size_bytes)
        if size_bytes < trusted_bytes:
            trusted_bytes = size_bytes // CHUNK_BYTES * CHUNK_BYTES
        del self._sums[-(-trusted_bytes // CHUNK_BYTES) :]
        return trusted_bytes

    def open(self) -> None:
        """Re-hash the part that is already here and seek to its end. Idempotent."""
        if self._out:
            return
        self.path.parent.mkdir(exist_ok=True)
        if not self.done_bytes:  # perhaps another file's, or a link
            self.path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.path, flags, 0o666)
        self._out = io.FileIO(descriptor, "r+")
        self.done_bytes = self._read_again(self._out)
        del self._sums[-(-self.done_bytes // CHUNK_BYTES) :]
        self._out.truncate(self.done_bytes)
        self._out.seek(self.done_bytes)
        if not self.done_bytes or not self._note.exists():
            self._write_note()

    def _read_again(self, out: io.FileIO) -> int:
        """Take the beginning into the sum; return how much of it is what it was."""
        read_bytes = 0
        while read_bytes < self.done_bytes:
            wanted_bytes = min(CHUNK_BYTES, self.done_bytes - read_bytes)
            chunk = hashlib.sha256()
            before = self._digest.copy()
            got_bytes = 0
            while got_bytes < wanted_bytes:
                piece = out.read(min(BLOCK_BYTES, wanted_bytes - got_bytes))
                if not piece:
                    break
                got_bytes += len(piece)
                self._digest.update(piece)
                if self._sums:
                    chunk.update(piece)
            digest = self._sums[read_bytes // CHUNK_BYTES] if self._sums else ""
            if got_bytes < wanted_bytes or (digest and chunk.hexdigest() != digest):
                self._digest = before
                return read_bytes
            read_bytes += got_bytes
        return read_bytes

    def _write_note(self) -> None:
        text = "\n".join([json.dumps(self.file.identity), *self._sums]) + "\n"
        self._note.write_text(text, encoding="utf-8")

    def write(self, piece: bytes) -> None:
        """Append what comes next."""
        assert self._out
        self._digest.update(piece)
        if not self.file.sha256:
            self._chunk.update(piece)
        write_all(self._out, piece)
        self.done_bytes += len(piece)

    def end_chunk(self, digest: str) -> bool:
        """Note the sum of a chunk that has arrived; return whether it is what the site says."""
        here, self._chunk = self._chunk.hexdigest(), hashlib.sha256()
        if digest and digest != here:
            return False
        self._sums.append(here)
        with self._note.open("a", encoding="utf-8") as note:
            note.write(f"{here}\n")
        return True

    def drop(self) -> None:
        """Forget all of it: it is not what the site has."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        """Return the sum of what is here."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file; what has arrived stays. Idempotent."""
        if self._out:
            self._out.close()

    def finish(self) -> Path:
        """Return the whole file, which the caller moves to its place."""
        self.close()
        self._note.unlink(missing_ok=True)
        return self.path


def tidy(destination: Path) -> None:
    """Remove the folder of parts if none is left, and parts that nobody wanted for two weeks."""
    folder = destination / PARTIAL
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.lstat().st_mtime > _KEPT_S:
                path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


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
