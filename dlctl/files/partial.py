"""A large file that has arrived in part: its beginning, without holes.

Whatever ends a download, the next one goes on behind the last part that can be trusted, if the
site's file is still the same one. The beginning is read again then, once: a machine that lost its
power may have lost what it had not written.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
from pathlib import Path

from dlctl.files.listing import SiteFile
from dlctl.files.target import PARTIAL, write_all

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
        told_bytes = min(len(self._sums) * CHUNK_BYTES, self.file.size_bytes)
        if size_bytes < told_bytes:
            told_bytes = size_bytes // CHUNK_BYTES * CHUNK_BYTES
        del self._sums[-(-told_bytes // CHUNK_BYTES) :]
        return told_bytes

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
            told = self._sums[read_bytes // CHUNK_BYTES] if self._sums else ""
            if got_bytes < wanted_bytes or (told and chunk.hexdigest() != told):
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

    def end_chunk(self, told: str) -> bool:
        """Note the sum of a chunk that has arrived; return whether it is what the site says."""
        here, self._chunk = self._chunk.hexdigest(), hashlib.sha256()
        if told and told != here:
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
