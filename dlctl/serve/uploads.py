"""What a request brings: a manifest, and the code as an archive or from Git, as a folder here.

The folder's name is the digest of what it holds, so that the same request brings the same folder,
and a submission that was broken off finds it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from dlctl.errors import ManifestError
from dlctl.record import state_directory
from dlctl.serve.problems import TooLarge

if TYPE_CHECKING:
    from dlctl.record import Record

MANIFEST = "manifest.yml"
MOST_FILES, MOST_UNPACKED_BYTES = 20_000, 4 << 30
_GIT_S, _KEPT_S = 300.0, 24 * 3600.0
URL = re.compile(r"(?:https|ssh)://[!-~]+")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Of Git: a commit's full hash."""
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
    """
    with tempfile.TemporaryDirectory(dir=uploads_folder(), prefix="coming-") as coming:
        folder = Path(coming) / "code"
        folder.mkdir()
        if archive is not None:
            _unpack(archive, folder)
        if git is not None:
            _clone(*git, folder)
        if manifest is not None:
            (folder / name).write_bytes(manifest)
        if not (folder / name).is_file():
            raise ManifestError(
                f"the request has no {name}", hint=f"send it as `{Path(name).stem}`, or in `code`"
            )
        target = uploads_folder() / _digest(folder)
        if target.is_dir():
            os.utime(target)
        with suppress(OSError):  # it is there already
            folder.rename(target)
    return target


def remove_unused(records: Iterable[Record]) -> None:
    """Remove what no training was made of, once it is a day old."""
    used = {Path(record.manifest_path).parent for record in records}
    for path in uploads_folder().iterdir():
        with suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > _KEPT_S
            if is_old and path.resolve() not in used:
                shutil.rmtree(path, ignore_errors=True)


def _digest(folder: Path) -> str:
    """Return what tells a folder's files from others: archives of the same ones may differ."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, mode = str(path.relative_to(folder)), path.stat().st_mode & 0o100
        found.update(f"{len(name)} {name} {mode} {path.stat().st_size}\0".encode(errors="replace"))
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    return found.hexdigest()[:32]


def _unpack(archive: IO[bytes], folder: Path) -> None:
    count = total = 0
    try:
        for name, content, is_executable in _members(archive):
            count += 1
            if count > MOST_FILES:
                raise TooLarge(f"the code has more than {MOST_FILES:,} files")
            path = _inside(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                while chunk := content.read(1 << 20):
                    total += len(chunk)
                    if total > MOST_UNPACKED_BYTES:
                        raise TooLarge(f"the code has more than {MOST_UNPACKED_BYTES >> 30} GiB")
                    file.write(chunk)
            path.chmod(0o755 if is_executable else 0o644)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, RuntimeError,
            NotImplementedError, ValueError) as error:  # fmt: skip
        what = str(error).partition(":\n")[0]  # tarfile adds what each compression has against it
        raise ManifestError(f"the code is no whole ZIP or tar: {what}") from error


def _members(archive: IO[bytes]) -> Iterator[tuple[str, IO[bytes], bool]]:
    """Yield the regular files of an archive; links and devices are refused."""
    archive.seek(0)
    head = archive.read(4)
    archive.seek(0)
    if head in _ZIP_HEADS:  # not `is_zipfile`, which looks at the end: a tar may end with a ZIP
        with zipfile.ZipFile(archive) as zipped:
            for each in zipped.infolist():
                mode = each.external_attr >> 16
                if mode & 0o170000 == 0o120000:
                    raise ManifestError(
                        f"{each.filename!r} in the code is a link: send what it leads to"
                    )
                if not each.is_dir():
                    with zipped.open(each) as unzipped:
                        yield each.filename, unzipped, bool(mode & 0o100)
        return
    with tarfile.open(fileobj=archive, mode="r:*") as tarred:
        for member in tarred:
            if member.isdir():
                continue
            content = tarred.extractfile(member) if member.isreg() else None
            if content is None:
                raise ManifestError(
                    f"{member.name!r} in the code is no file: send what it leads to"
                )
            yield member.name, content, bool(member.mode & 0o100)


def _inside(folder: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
        raise ManifestError(f"{name!r} in the code leads out of its folder")
    return folder.joinpath(*parts)


def _clone(url: str, commit: str, folder: Path) -> None:
    env = os.environ | {
        "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:ssh",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    }  # fmt: skip
    for words in (["init", "-q"], ["fetch", "-q", "--depth", "1", "--", url, commit],
                  ["checkout", "-q", "FETCH_HEAD"]):  # fmt: skip
        try:
            done = subprocess.run(["git", *words], cwd=folder, env=env, timeout=_GIT_S,  # noqa: S603, S607
                                  capture_output=True, check=False)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ManifestError(f"git {words[0]}: {error}") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise ManifestError(f"git {words[0]} {url} {commit[:12]}: {said}",
                                hint="check the URL, and that the server may read it")  # fmt: skip
    shutil.rmtree(folder / ".git")  # which is another one at each fetch


def text_of(manifest: str | dict[str, Any]) -> bytes:
    """Return a manifest's file; JSON is YAML."""
    return (manifest if isinstance(manifest, str) else json.dumps(manifest, indent=2)).encode()
