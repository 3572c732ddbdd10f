"""Writes a deterministic tar stream, block by block, from files on disk and bytes in memory.

PAX format, owner 0, one fixed time: the same entries give the same bytes. Names are `str` with
surrogate escapes, so bytes that are not UTF-8 survive. Knows nothing about transports.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract.ground.safe_text import printable
from dlctl.errors import TransferError

_CHUNK_BYTES = 256 * 1024
_FIXED_TIME_S = 946684800
"""2000-01-01, as some tars warn about 1970; what unpacks the archive ignores it."""
END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True)
class Entry:
    """A file (from disk or memory), a folder or a symbolic link to send."""

    path: str
    """Relative, with `/`."""
    source: Path | bytes | None = None
    """A file on disk, or the content; None for a folder."""
    mode: int = 0o644
    link: str | None = None
    """The target of a symbolic link."""
    size_bytes: int | None = None
    """Size of a file on disk, if known: a file that has grown or shrunk since is refused."""
    sha256: str = ""
    """The sum of a file on disk, if known: a large file is then sent by its sum, and once."""

    @property
    def content_bytes(self) -> int:
        """Return how long its content is.

        Raises:
            TransferError: the file can't be read.
        """
        if isinstance(self.source, bytes):
            return len(self.source)
        if self.source is None or self.size_bytes is not None:
            return self.size_bytes or 0
        try:
            return self.source.stat().st_size
        except OSError as error:
            raise _unreadable(self.source, error) from error


def write_entry(
    entry: Entry, prefix: str = "", digests: dict[str, str] | None = None
) -> Iterator[bytes]:
    """Yield the tar blocks of one entry; its path and sha256 are added to `digests`.

    Raises:
        TransferError: the file can't be read, or its size changed while it was read.
    """
    info = tarfile.TarInfo(prefix + entry.path)
    info.mode, info.mtime = entry.mode, _FIXED_TIME_S
    if entry.source is None or entry.link is not None:
        info.type = tarfile.DIRTYPE if entry.link is None else tarfile.SYMTYPE
        info.linkname = entry.link or ""
        yield _header(info)
        return
    digest = hashlib.sha256()
    info.size = entry.content_bytes
    yield _header(info)
    if isinstance(entry.source, bytes):
        view = memoryview(entry.source)
        chunks: Iterable[bytes] = (
            bytes(view[at : at + _CHUNK_BYTES]) for at in range(0, len(view), _CHUNK_BYTES)
        )
    else:
        chunks = read_exactly(entry.source, info.size)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    yield bytes(-info.size % tarfile.BLOCKSIZE)
    if digests is not None:
        digests[prefix + entry.path] = digest.hexdigest()


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def read_exactly(path: Path, size_bytes: int, offset: int = 0) -> Iterator[bytes]:
    """Yield so many bytes of a file, to its end.

    Raises:
        TransferError: it can't be read, or ends elsewhere.
    """
    missing = size_bytes
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            while missing and (chunk := file.read(min(missing, _CHUNK_BYTES))):
                missing -= len(chunk)
                yield chunk
            grew = not missing and file.read(1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if missing or grew:
        raise TransferError(
            f"{printable(path)} changed while it was sent",
            hint="Try again when no program writes to it.",
        )


def _unreadable(path: Path, error: OSError) -> TransferError:
    return TransferError(
        f"{printable(path)} can't be read: {error.strerror}",
        hint="Make it readable, or exclude it with a line in .dlctlignore.",
    )
