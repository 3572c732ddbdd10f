"""Downloads files: listed and hashed on the site, one tar stream, verified here, then moved.

No half-written file ever has its final name, and a file that is here with the right hash is not
sent again. Names and links that point outside the destination are refused. Uses `Transport` only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from dlctl.errors import TransferError
from dlctl.files.archive import printable
from dlctl.transport.base import Process, Transport

_CHUNK_BYTES = 1024 * 1024
_ZEROS = bytes(_CHUNK_BYTES)
_BATCH_BYTES = 60_000
"""File names in one argument list on the site; POSIX guarantees little more."""
_MISSING = 71
_LIST_TIMEOUT_S = 3600.0
_TEMPORARY_PREFIX = ".dlctl-download."


@dataclass(frozen=True)
class _Remote:
    """One file on the site."""

    path: str
    kind: str
    """`f` a file, `l` a symbolic link."""
    size_bytes: int
    sha256: str
    """Empty if unknown: then only the size is checked."""


def download(
    transport: Transport,
    base: str,
    paths: Sequence[str] | Mapping[str, str],
    destination: Path,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    place: Callable[[Path, Path], None] | None = None,
    on_here: Callable[[Path], None] | None = None,
    idle_timeout_s: float = 300.0,
) -> list[Path]:
    """Download files and whole folders from below `base` to the same paths below `destination`.

    Args:
        paths: Relative to `base`; or a mapping of files to the sha256 that each must have.
        place: Moves a file that has arrived to its final path; replaces what is there by default.
        on_here: Called with the path of each file that was already here.

    Returns:
        All files, including those that were already here.

    Raises:
        TransferError: a file is missing or damaged, points outside, or the disk here is full.
    """
    for path in paths:
        _refuse_outside(path)
    files = _list(transport, base, paths)
    try:
        destination.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(destination)
        wanted = []
        for file in files:
            if not _is_here(destination, file):
                wanted.append(file)
            elif on_here:
                on_here(destination / file.path)
        receiver = _Receiver(transport.name, wanted, destination, on_progress, place or _replace)
        _fetch(transport, base, wanted, receiver, idle_timeout_s)
    except OSError as error:
        raise _local_failure(destination, error) from error
    return [destination / file.path for file in files]


def _refuse_outside(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise TransferError(
            f"{printable(path)!r} is not inside the folder: refused",
            hint="Ask for paths below the job directory.",
        )


# On the site ----------------------------------------------------------------------------------


def _list(
    transport: Transport, base: str, paths: Sequence[str] | Mapping[str, str]
) -> list[_Remote]:
    known = paths if isinstance(paths, Mapping) else {}
    names = " ".join(shlex.quote(f"./{path}") for path in paths)
    hashing = "" if known else 'sha256sum -- "$@" 2>/dev/null || shasum -a 256 -- "$@"'
    # Fields end with NUL. Each batch: the names, an empty field, the sizes, the hashes.
    batch = f"""\
printf "%s\\0" "$@"; printf "\\0"
stat -c %s -- "$@" 2>/dev/null || stat -f %z -- "$@"
printf "\\0"
{hashing or ":"}
printf "\\0\""""
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(base)} || exit {_MISSING}
for f in {names}; do
    [ -e "$f" ] || [ -L "$f" ] || {{ printf '%s is not there' "$f" >&2; exit {_MISSING}; }}
done
find -H {names} ! -type f ! -type d ! -type l -exec sh -c \\
    'printf "%s is neither a file nor a folder" "$1" >&2' sh {{}} \\; -exec false {{}} + || exit 72
find -H {names} -type f -exec sh -c {shlex.quote(batch)} sh {{}} + 2>/dev/null
printf '\\0'
find -H {names} -type l -exec sh -c 'printf "%s\\0" "$@"' sh {{}} +
exit 0"""
    end = transport.run(script if names else "printf '\\0'", timeout_s=_LIST_TIMEOUT_S)
    if end.exit_code:
        raise TransferError(
            f"{transport.name}: {base}: {end.last_error_line or end.exit_code}",
            hint="Check that it exists, and its permissions.",
        )
    return [
        _Remote(f.path, f.kind, f.size_bytes, known.get(f.path, f.sha256))
        for f in _parse_list(end.stdout)
    ]


def _parse_list(answer: bytes) -> list[_Remote]:
    fields = iter(answer.split(b"\0"))
    files: dict[str, _Remote] = {}
    while names := [_name(raw) for raw in iter(lambda: next(fields, b""), b"")]:
        sizes = next(fields, b"").split()
        hashes = _hashes(next(fields, b""))
        if len(sizes) != len(names):
            raise TransferError("the files changed while they were listed", hint="Try again.")
        if len(hashes) != len(names):
            hashes = [""] * len(names)
        for name, size, digest in zip(names, sizes, hashes, strict=True):
            files[name] = _Remote(name, "f", int(size), digest)
    for raw in fields:
        if raw:
            files[_name(raw)] = _Remote(_name(raw), "l", 0, "")
    return list(files.values())


def _name(raw: bytes) -> str:
    return str(PurePosixPath(raw.decode("utf-8", "surrogateescape"))) if raw else ""


def _hashes(text: bytes) -> list[str]:
    """Return the hash of each line; an odd name makes GNU's line start with a backslash."""
    words = (line.lstrip(b"\\")[:64].decode("ascii", "replace") for line in text.splitlines())
    return [word for word in words if len(word) == 64]


# On this machine ---------------------------------------------------------------------------------


def _is_here(destination: Path, file: _Remote) -> bool:
    path = destination / file.path
    _refuse_link_parents(destination, path)
    if file.kind != "f" or not file.sha256 or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size == file.size_bytes and _sha256(path) == file.sha256


def _refuse_link_parents(destination: Path, path: Path) -> None:
    """Refuse an existing link here that would lead a file out of the destination."""
    root = destination.resolve()
    if not path.parent.resolve().is_relative_to(root):
        raise TransferError(
            f"{printable(path.parent)} points outside {printable(destination)}: refused",
            hint="Remove the link, or choose another destination.",
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def temporary_folder(destination: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for partial files; the next download removes what a killed one left."""
    prefix = f"{_TEMPORARY_PREFIX}{os.getpid()}."
    return tempfile.TemporaryDirectory(prefix=prefix, dir=destination)


def _replace(arrived: Path, final: Path) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    arrived.replace(final)


def _remove_leftovers(destination: Path) -> None:
    for folder in destination.glob(_TEMPORARY_PREFIX + "*"):
        pid = folder.name.split(".")[2]
        if not (pid.isdecimal() and Path(f"/proc/{pid}").exists()):
            shutil.rmtree(folder, ignore_errors=True)


# The transfer ------------------------------------------------------------------------------------


def _fetch(
    transport: Transport,
    base: str,
    wanted: Sequence[_Remote],
    receiver: _Receiver,
    idle_timeout_s: float,
) -> None:
    if not wanted:
        return
    with temporary_folder(receiver.destination) as temporary:
        process = transport.start(_tar_script(base, wanted), idle_timeout_s=idle_timeout_s)
        try:
            receiver.receive(process, Path(temporary))
            end = process.wait(idle_timeout_s)
        except BaseException:
            process.kill()
            raise
    if end.exit_code or receiver.missing:
        names = ", ".join(sorted(printable(name) for name in receiver.missing)[:3])
        raise TransferError(
            f"{transport.name}: {names or base} did not arrive (exit code {end.exit_code}): "
            f"{end.last_error_line}",
            hint="Try again: what has arrived is not sent twice.",
        )


def _tar_script(base: str, wanted: Sequence[_Remote]) -> str:
    """Return a script that writes one archive for each argument list, one after another."""
    batches: list[list[str]] = [[]]
    size_bytes = 0
    for file in wanted:
        word = shlex.quote(f"./{file.path}")
        if size_bytes + len(word) > _BATCH_BYTES:
            batches.append([])
            size_bytes = 0
        batches[-1].append(word)
        size_bytes += len(word) + 1
    tars = "\n".join(f"tar $sparse -cf - -- {' '.join(batch)} || code=$?" for batch in batches)
    return f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(base)} || exit 71
# GNU's sends no holes; others may not know the option.
sparse=$(tar --version 2>/dev/null | sed -n 's/.*GNU.*/-S/p')
code=0
{tars}
exit $code"""


class _Receiver:
    """Takes the members of the stream one by one, and writes nothing that was not requested."""

    def __init__(
        self,
        name: str,
        wanted: Sequence[_Remote],
        destination: Path,
        on_progress: Callable[[int, int], None] | None,
        place: Callable[[Path, Path], None],
    ) -> None:
        self._name = name
        self.missing = {file.path: file for file in wanted}
        self.destination = destination
        self._temporary = destination
        self._on_progress = on_progress
        self._place = place
        self._done_bytes = 0
        self._total_bytes = sum(file.size_bytes for file in wanted)

    def receive(self, process: Process, temporary: Path) -> None:
        """Take all members, each by a temporary name first."""
        self._temporary = temporary
        try:
            with tarfile.open(
                fileobj=process.stdout, mode="r|", bufsize=256 * 1024, ignore_zeros=True,
                encoding="utf-8", errors="surrogateescape",
            ) as archive:  # fmt: skip
                for member in archive:
                    self._take(archive, member)
        except tarfile.TarError as error:
            if str(error) == "empty file":
                return  # tar sent nothing: its exit code says why
            raise TransferError(
                f"{self._name}: the stream is damaged: {error}", hint="Try again."
            ) from error

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = str(PurePosixPath(member.name))
        file = self.missing.get(path)
        if file is None:
            raise self._refused(path, "was not requested")
        final = self.destination / path
        _refuse_link_parents(self.destination, final)
        if member.issym():
            self._take_link(member, final)
        elif member.isreg():
            content = archive.extractfile(member)
            assert content is not None
            self._take_file(content, member, file, final)
        elif member.islnk():
            self._take_hard_link(str(PurePosixPath(member.linkname)), final)
        else:
            raise self._refused(path, "is neither a file nor a folder")
        del self.missing[path]

    def _take_file(
        self, content: IO[bytes], member: tarfile.TarInfo, file: _Remote, final: Path
    ) -> None:
        digest = hashlib.sha256()
        partial = self._temporary / "file"
        with partial.open("wb") as out:
            for chunk in _chunks(content):
                digest.update(chunk)
                if chunk == _ZEROS[: len(chunk)]:
                    out.seek(len(chunk), os.SEEK_CUR)  # a hole
                else:
                    out.write(chunk)
                self._progress(len(chunk))
            out.truncate(member.size)
        if file.sha256 and digest.hexdigest() != file.sha256:
            raise TransferError(
                f"{self._name}: {printable(file.path)} is damaged or still being written: its "
                "sha256 differs from the one listed",
                hint="Try again; if it happens again, the file on the site is damaged.",
            )
        if member.mode & 0o100:
            partial.chmod(partial.stat().st_mode | (partial.stat().st_mode & 0o444) >> 2)
        self._place(partial, final)

    def _take_link(self, member: tarfile.TarInfo, final: Path) -> None:
        target = Path(os.path.normpath(final.parent.resolve() / member.linkname))
        if member.linkname.startswith("/") or not target.is_relative_to(self.destination.resolve()):
            raise self._refused(member.name, f"is a link that points outside ({member.linkname})")
        partial = self._temporary / "link"
        partial.symlink_to(member.linkname)
        self._place(partial, final)

    def _take_hard_link(self, first: str, final: Path) -> None:
        """Take the second name of a file that arrived before."""
        source = self.destination / first
        if first in self.missing or not source.is_file() or source.is_symlink():
            raise self._refused(first, "is a hard link to a file that did not arrive")
        _refuse_link_parents(self.destination, source)
        partial = self._temporary / "file"
        shutil.copy2(source, partial)
        self._progress(partial.stat().st_size)
        self._place(partial, final)

    def _progress(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._on_progress:
            self._on_progress(min(self._done_bytes, self._total_bytes), self._total_bytes)

    def _refused(self, path: str, why: str) -> TransferError:
        return TransferError(
            f"{self._name}: {printable(path)} {why}: refused", hint="Remove it on the site."
        )


def _chunks(content: IO[bytes]) -> Iterator[bytes]:
    while chunk := content.read(_CHUNK_BYTES):
        yield chunk


def _local_failure(destination: Path, error: OSError) -> TransferError:
    what = error.strerror or str(error)
    check = "that you may write there (ls -ld"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk here is full, or your quota is used up"
        check = "the space here (df -h"
    return TransferError(
        f"{printable(error.filename2 or error.filename or destination)}: {what}",
        hint=f"Check {check} {shlex.quote(printable(destination))}), then try again: "
        "what has arrived is not sent twice.",
    )
