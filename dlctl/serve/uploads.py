"""Unpack the uploads of requests: a manifest, and the code from an archive or from Git.

The folder's name is the digest of what it holds, so that the same request brings the same folder,
and a submission that was broken off finds it again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from dlctl.contract.ground.space import see_space
from dlctl.errors import ManifestError, NotWritten
from dlctl.record import state_directory
from dlctl.serve.problems import TooLarge

if TYPE_CHECKING:
    from dlctl.record import Record

MANIFEST = "manifest.yml"
MOST_FILES, MOST_UNPACKED_BYTES = 20_000, 4 << 30
_DEEPEST = 64
_MOST_LISTED_BYTES = 256 * MOST_FILES
"""The size of a ZIP's directory, or of a tar's header: each is read as a whole."""
_GIT_S, _KEPT_S = 300.0, 24 * 3600.0
_PROTOCOLS = "https:ssh"
URL = re.compile(r"(?:https|ssh)://[!-~]+")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""The full hash of a commit of Git."""
_ZIP_HEADS = (b"PK\x03\x04", b"PK\x05\x06")


def uploads_folder() -> Path:
    """Return where uploads are kept, private to the user."""
    path = state_directory() / "uploads"
    path.mkdir(exist_ok=True, mode=0o700)
    return path


def folder_of(
    manifest: bytes | None, archive: IO[bytes] | None = None, git: tuple[str, str] | None = None,
    *, name: str = MANIFEST,
) -> Path:  # fmt: skip
    """Return a folder with the code, and the manifest in it.

    Args:
        manifest: None: it is among the code.
        archive: ZIP, or tar with any compression.
        git: URL, and the commit's full hash.
        name: The manifest's file.

    Raises:
        TooLarge
        ManifestError: an archive is none, or leads out of its folder; there is no manifest; or Git
            does not bring the commit.
        NotWritten: there is no room here.
    """
    with _room(), tempfile.TemporaryDirectory(dir=uploads_folder(), prefix="coming-") as coming:
        folder = Path(coming) / "code"
        folder.mkdir()
        if archive is not None:
            _unpack(archive, folder)
        if git is not None:
            _clone(*git, folder)
        path = folder / name
        if manifest is not None:
            path.unlink(missing_ok=True)  # a link from Git may lead anywhere
            path.write_bytes(manifest)
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            raise ManifestError(
                f"the request has no {name}", hint=f"send it as `{Path(name).stem}`, or in `code`"
            )
        target = uploads_folder() / _digest(folder)
        if target.is_dir():
            os.utime(target)
        with suppress(OSError):  # it is there already
            folder.rename(target)
    return target


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritten(f"the upload can't be kept in {uploads_folder()}: {error.strerror}",
                         hint="make room: " + see_space(uploads_folder())) from error  # fmt: skip


def remove_unused(records: Iterable[Record]) -> None:
    """Remove what no training was made of, once it is a day old."""
    used = {Path(record.manifest_path).parent for record in records}
    for path in uploads_folder().iterdir():
        with suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > _KEPT_S
            if is_old and path.resolve() not in used:
                shutil.rmtree(path, ignore_errors=True)


def _digest(folder: Path) -> str:
    """Return what tells a folder's files from others: archives of the same ones may differ.

    Git's own folder, which no two clones have alike, counts by its commit.
    """
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, mode = str(path.relative_to(folder)), path.stat().st_mode & 0o100
        if name.startswith(".git/") and name != ".git/HEAD":
            continue
        found.update(os.fsencode(f"{len(name)} {name} {mode} {path.stat().st_size}\0"))
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    return found.hexdigest()[:32]


def _unpack(archive: IO[bytes], folder: Path) -> None:
    total = 0
    try:
        for name, content, is_executable in _members(archive):
            path = _inside(folder, name)
            if path is None:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                while chunk := content.read(1 << 20):
                    total += len(chunk)
                    if total > MOST_UNPACKED_BYTES:
                        raise _too_large()
                    file.write(chunk)
            path.chmod(0o755 if is_executable else 0o644)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, RuntimeError,
            NotImplementedError, ValueError) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        what = str(error).partition(":\n")[0]  # tarfile adds what each compression has against it
        raise ManifestError(f"the code is no whole ZIP or tar: {what}") from error


def _too_large() -> TooLarge:
    return TooLarge(
        f"the code has more than {MOST_FILES:,} files, or than {MOST_UNPACKED_BYTES >> 30} GiB"
    )


_OF_THE_NEXT = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE,
                tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)  # fmt: skip
"""Headers that tell of the next file."""


class _Header(tarfile.TarInfo):
    """A header of a tar that is not so large that it would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        found = super().frombuf(buf, encoding, errors)
        if found.type in _OF_THE_NEXT and found.size > _MOST_LISTED_BYTES:
            raise _too_large()
        return found


class _Listed:
    """A ZIP's file, of which no part is read as a whole that would fill the memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.seekable, self._file = file.seek, file.tell, file.seekable, file

    def read(self, size: int = -1) -> bytes:
        if size > _MOST_LISTED_BYTES:
            raise _too_large()
        return self._file.read(size)


def _members(archive: IO[bytes]) -> Iterator[tuple[str, IO[bytes], bool]]:
    """Yield the regular files of an archive; links and devices are refused."""
    archive.seek(0)
    head = archive.read(4)
    archive.seek(0)
    if head in _ZIP_HEADS:  # not `is_zipfile`, which looks at the end: a tar may end with a ZIP
        listed: Any = _Listed(archive)
        with zipfile.ZipFile(listed) as zipped:
            for count, each in enumerate(zipped.infolist()):
                if count >= MOST_FILES:
                    raise _too_large()
                mode = each.external_attr >> 16
                if mode & 0o170000 == 0o120000:
                    raise ManifestError(
                        f"{each.filename!r} in the code is a link: send what it leads to"
                    )
                if not each.is_dir():
                    with zipped.open(each) as unzipped:
                        yield each.filename, unzipped, bool(mode & 0o100)
        return
    with tarfile.open(fileobj=archive, mode="r:*", tarinfo=_Header) as tarred:
        for count, member in enumerate(tarred):
            if count >= MOST_FILES:
                raise _too_large()
            if member.isdir():
                continue
            content = tarred.extractfile(member) if member.isreg() else None
            if content is None:
                raise ManifestError(
                    f"{member.name!r} in the code is no file: send what it leads to"
                )
            yield member.name, content, bool(member.mode & 0o100)


def _inside(folder: Path, name: str) -> Path | None:
    """Return where a file of an archive belongs.

    None: it is Git's, which would run here what its configuration says.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
        raise ManifestError(f"{name!r} in the code leads out of its folder")
    if len(parts) > _DEEPEST:
        raise ManifestError(f"{name[:80]!r}… in the code is more than {_DEEPEST} folders deep")
    return None if ".git" in parts else folder.joinpath(*parts)


def _clone(url: str, commit: str, folder: Path) -> None:
    env = os.environ | {
        "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": _PROTOCOLS,
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    }  # fmt: skip
    for words in (["init", "-q"], ["fetch", "-q", "--depth", "1", "--", url, commit],
                  ["checkout", "-q", "FETCH_HEAD"]):  # fmt: skip
        what = f"git {words[0]} {url} {commit[:12]}"
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(["git", *words], cwd=folder, env=env, stderr=errors,  # noqa: S603, S607
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           start_new_session=True)  # fmt: skip
            except OSError as error:
                raise ManifestError(f"{what}: {error}") from error
            try:
                code = _ended(process, folder)
            except BaseException as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its helpers, too
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise ManifestError(f"{what}: not done after {_GIT_S:g} s") from error
                raise
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        if code:
            raise ManifestError(f"{what}: {last}",
                                hint="check the URL, and that the server may read it")  # fmt: skip


def _ended(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Return the exit code of Git, unless it takes too long or brings too much."""
    until = time.monotonic() + _GIT_S
    while True:
        code = None
        try:
            code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            if time.monotonic() > until:
                raise
        _check_size(folder)
        if code is not None:
            return code


def _check_size(folder: Path) -> None:
    sizes = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # Git has removed it
            sizes.append(path.lstat().st_size)
    if sum(sizes) > MOST_UNPACKED_BYTES or len(sizes) > 4 * MOST_FILES:
        raise _too_large()


def text_of(manifest: str | dict[str, Any]) -> bytes:
    """Return a manifest's file; JSON is YAML."""
    return (manifest if isinstance(manifest, str) else json.dumps(manifest, indent=2)).encode()
