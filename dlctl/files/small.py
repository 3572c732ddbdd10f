"""Brings small files and links: many in one tar stream, each placed whole.

A file whose sum is known is placed as soon as it has come. The others wait for the sum of their
stream, which the site makes as it sends: so streams of those are short.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shlex
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from dlctl.contract.ground.safe_text import lines_of, printable
from dlctl.errors import TransferError
from dlctl.files.large import damaged
from dlctl.files.listing import (
    IDLE_TIMEOUT_S,
    SHA256,
    SiteFile,
    batches,
    grouped,
    list_files,
    path_of,
)
from dlctl.files.target import Target, leads_out, refuse_link_parents
from dlctl.transport.base import Process, Transport

_CHUNK_BYTES = 1024 * 1024
_MOST_BYTES = 16 * 1024 * 1024
"""No file that is listed as small is larger, unless it grows."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_GROUP_BYTES, _GROUP_FILES = 64 * 1024 * 1024, 4000
"""The most that one stream brings of files without a sum."""


def groups(files: Sequence[SiteFile]) -> Iterator[list[SiteFile]]:
    """Yield the files of each stream."""
    known = [file for file in files if file.sha256]
    if known:
        yield known
    unknown = (file for file in files if not file.sha256)
    yield from grouped(unknown, lambda file: file.size_bytes, _GROUP_BYTES, _GROUP_FILES)


def bring(
    transport: Transport, base: str, wanted: Sequence[SiteFile], receiver: Receiver,
    temporary: Path,
) -> None:  # fmt: skip
    """Bring the files of one stream; `receiver.missing` has those that did not come.

    Raises:
        TransferError: what came is not what was asked for.
        TransportError
    """
    mark, has_sum = secrets.token_hex(16), not wanted[0].sha256
    script = _script(base, wanted, mark if has_sum else "")
    process = transport.start(script, idle_timeout_s=IDLE_TIMEOUT_S)
    try:
        digest = receiver.receive(process, temporary, waits=has_sum)
        end = process.wait(IDLE_TIMEOUT_S)
    except BaseException:
        process.kill()
        raise
    if has_sum:
        _, found, site_digest = end.error_text.rpartition(mark)
        if found and site_digest.strip() not in (digest, ""):
            raise damaged(transport.name, wanted[0].path)
        if found:  # else the stream was cut short
            listed = list_files(transport, base, [file.path for file in wanted], missing_ok=True)
            receiver.place_waiting({file.identity for file in listed})
    if receiver.missing and end.exit_code and "No such file" not in end.error_text:
        lines = [line for line in lines_of(end.error_text) if line and mark not in line]
        receiver.trouble = lines[-1] if lines else f"exit code {end.exit_code}"


def _script(base: str, wanted: Sequence[SiteFile], mark: str) -> str:
    """Return a script that writes one archive for each argument list, one after another."""
    tars = "\n".join(
        f"tar $options -cf - -- {' '.join(words)} || code=$?"
        for words in batches([file.path for file in wanted])
    )
    summed = f"""\
{SHA256}
exec 5>&1
if [ -e /dev/fd/5 ]; then sum=$({{ archives | tee /dev/fd/4 >&5; }} 4>&1 | sha256)
else archives; sum=
fi
printf '\\n%s %s\\n' {mark} "$sum" >&2"""
    return f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(base)} || exit 71
# GNU's takes `\\n` in a name for a new line; others may not know the option.
options=$(tar --version 2>/dev/null | sed -n 's/.*GNU.*/--no-unquote/p')
code=0
archives() {{
{tars}
}}
{summed if mark else "archives"}
exit $code"""


class _Summed(io.RawIOBase):
    """The raw stream, of which a sum is made on the way."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self.digest.update(data)
        return data


class Receiver:
    """Takes the members of the streams one by one, and writes nothing that was not requested.

    Args:
        name: Of the site, for messages.
        wanted: What was requested, with its path here.
        target: The folder here.
        on_arrived: Called with the size of each piece.
    """

    def __init__(
        self, name: str, wanted: Sequence[tuple[SiteFile, Path]], target: Target,
        on_arrived: Callable[[int], None], on_left_out: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._name = name
        self._leave_out = on_left_out
        self.missing = {file.path: (file, path) for file, path in wanted}
        self.left_out: set[str] = set()
        self._came: dict[str, Path] = {}
        self._safe: set[str] = set()
        """Folders that lead nowhere else, as long as no link comes."""
        self._target = target
        self._on_arrived = on_arrived
        self._temporary = target.path
        self._waiting: list[tuple[Path, SiteFile, Path]] = []
        self._waits = False
        self._made = 0
        self.trouble = ""
        """The site's last words about a stream that failed."""

    def receive(self, process: Process, temporary: Path, *, waits: bool) -> str:
        """Take all members of a stream; return the stream's sum, if files wait for it."""
        self._temporary, self._waits = temporary, waits
        self._waiting.clear()
        stream = _Summed(process.stdout) if waits else process.stdout
        try:
            with tarfile.open(
                fileobj=stream, mode="r|", bufsize=256 * 1024, ignore_zeros=True,
                encoding="utf-8", errors="surrogateescape",
            ) as archive:  # fmt: skip
                for member in archive:
                    self._take(archive, member)
        except tarfile.TarError as error:
            if str(error) == "empty file":
                return ""  # tar sent nothing: its exit code says why
            raise TransferError(
                f"{self._name}: the stream is damaged: {error}", hint="Try again."
            ) from error
        if not isinstance(stream, _Summed):
            return ""
        while stream.read(_CHUNK_BYTES):
            pass
        return stream.digest.hexdigest()

    def place_waiting(self, identities: Collection[str]) -> None:
        """Move the files to their places that waited, and are still what was listed."""
        for arrived, file, path in self._waiting:
            if file.kind == "l" or file.identity in identities:
                self._place(arrived, file, path)
        self._waiting.clear()

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = path_of(member.name)
        file, path = self.missing.get(name, (None, self._target.path))
        if file is None:
            raise self._refused(name, "was not requested")
        folder = os.path.dirname(path)  # noqa: PTH120 - for each of many files
        if folder not in self._safe:
            refuse_link_parents(self._target.path, path)
            self._safe.add(folder)
        if member.issym():
            self._safe.clear()
            self._take_link(member, file, path)
        elif member.isreg() and not member.issparse():
            self._take_file(archive, member, file, path)
        elif member.islnk():
            self._take_hard_link(path_of(member.linkname), file, path)
        else:
            raise self._refused(name, "is neither a file nor a folder")

    def _take_file(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, file: SiteFile, path: Path
    ) -> None:
        """Take a file with few calls, as there may be very many; each fits into memory."""
        if member.size > _MOST_BYTES:
            return  # it has grown: the next try brings it in chunks
        data = archive.fileobj.read(member.size) if archive.fileobj else b""
        if len(data) < member.size:
            raise tarfile.ReadError("unexpected end of data")
        if file.sha256 and hashlib.sha256(data).hexdigest() != file.sha256:
            raise damaged(self._name, file.path)
        partial = self._new()
        mode = 0o777 if member.mode & 0o100 else 0o666  # less what the umask takes
        descriptor = os.open(partial, _NEW_FILE, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        self._on_arrived(len(data))
        self._arrived(partial, file, path)

    def _take_link(self, member: tarfile.TarInfo, file: SiteFile, path: Path) -> None:
        if leads_out(self._target.path, path.parent, member.linkname):
            where = printable(member.linkname)
            self._leave_out(file.path, f"is a link that points outside ({where})")
            self.left_out.add(file.path)
            del self.missing[file.path]
            return
        partial = self._new()
        partial.symlink_to(member.linkname)
        self._arrived(partial, file, path)

    def _take_hard_link(self, first: str, file: SiteFile, path: Path) -> None:
        source = self._came.get(first)
        if source is None or not source.is_file() or source.is_symlink():
            raise self._refused(first, "is a hard link to a file that did not arrive")
        partial = self._new()
        shutil.copy2(source, partial)
        self._on_arrived(partial.stat().st_size)
        self._arrived(partial, file, path)

    def _new(self) -> Path:
        """Return a path that no earlier file had: a stream that broke off may have left a link."""
        self._made += 1
        return self._temporary / f"file{self._made}"

    def _arrived(self, partial: Path, file: SiteFile, path: Path) -> None:
        if self._waits:
            self._waiting.append((partial, file, path))
            self._came[file.path] = partial
        else:
            self._place(partial, file, path)

    def _place(self, partial: Path, file: SiteFile, path: Path) -> None:
        self._target.place(partial, path, file.identity)
        self._came[file.path] = path
        del self.missing[file.path]

    def _refused(self, path: str, why: str) -> TransferError:
        return TransferError(
            f"{self._name}: {printable(path)} {why}: refused", hint="Remove it on the site."
        )
