"""Decides which files of the user's folder are sent, and refuses those that must not be.

Honours `.gitignore` and `.dlctlignore` at every level (the second wins). The digest covers the
content: paths, executable bits and bytes, never times or owners. Knows nothing about transports.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dlctl import contract
from dlctl.contract import BY_DLCTL, SentFile
from dlctl.contract.ground.amounts import format_bytes
from dlctl.contract.ground.safe_text import printable
from dlctl.contract.ground.whole_files import sha256_of
from dlctl.errors import BundleError
from dlctl.files.archive import Entry
from dlctl.request.ignore import (
    Excluded,
    Ignore,
    exclude,
    is_left_out,
    secret_in_content,
    secret_in_name,
)
from dlctl.sites.model import Site, xdg_directory

DEFAULT_LIMIT_BYTES = 16 * 1024 * 1024 * 1024
"""More is surely data. The site copies the folder for each training."""
_SHOWN = 10
_MOST_PROGRAM_BYTES = 1 << 20
_LEAVE_OUT = "Exclude it with a line in .dlctlignore"


@dataclass(frozen=True)
class Bundle:
    """All files of a folder that are sent."""

    files: tuple[Entry, ...]
    """Sorted by path. A symbolic link stays inside the folder, and has the link as its source."""
    index: bytes
    """See `dlctl.contract.sent_files`."""
    size_bytes: int
    left_out: tuple[Excluded, ...] = ()
    """The files of the folder that are not sent."""
    at_site: str = ""
    """The stored model whose files these are, as `ID@N`: then they have no sources here."""

    @property
    def digest(self) -> str:
        """Return the digest of paths, kinds and contents."""
        return contract.index_digest(self.index)

    @property
    def entries(self) -> list[Entry]:
        """Return the folders, the files and their index for an archive.

        Raises:
            BundleError: the files are at the site only.
        """
        if self.at_site:
            raise BundleError(
                f"the code of the model {self.at_site} is not whole at the site",
                hint=f"try again; `dlctl models show {self.at_site} --verify` names the damage",
            )
        folders = sorted(
            {"/".join(parts[:i]) for f in self.files for parts in [f.path.split("/")]
             for i in range(1, len(parts))}
        )  # fmt: skip
        return [
            *(Entry(folder, mode=0o755) for folder in folders),
            *self.files,
            Entry(contract.SENT_INDEX, self.index),  # last: no file is newer
        ]


def collect(
    folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES, leave_out: frozenset[str] = frozenset(),
    site: Site | None = None,
) -> Bundle:  # fmt: skip
    """Return the files of a folder that are sent.

    Args:
        leave_out: Paths that are sent separately: the manifest, whose credentials are removed.
        site: Where they are sent; its root folder, if that is on this machine, is left out.

    Raises:
        BundleError: names every file that can't or must not be sent, and says what to do.
    """
    if not folder.is_dir():
        raise BundleError(f"{printable(folder)} is not a folder")
    problems: list[str] = []
    files: list[Entry] = []
    left_out: list[Excluded] = []
    for file, ignore in _walk(folder.resolve(), _own_folders(site), problems, left_out):
        if file.path not in leave_out and _is_fit(file, ignore, problems):
            files.append(file)
    _refuse(problems)
    files.sort(key=lambda file: os.fsencode(file.path))
    size_bytes = sum(file.content_bytes for file in files)
    if size_bytes > limit_bytes:
        raise _too_big(files, size_bytes, limit_bytes)
    sent = [_sent(file) for file in files]
    known = tuple(replace(file, sha256=line.sha256) for file, line in zip(files, sent, strict=True))
    left_out.sort(key=lambda each: os.fsencode(each.path))
    return Bundle(known, contract.index_text(sent), size_bytes, tuple(left_out))


def programs(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each Python file and shell script that is sent."""
    for file in bundle.files:
        if file.path.endswith((".py", ".sh")) and file.content_bytes < _MOST_PROGRAM_BYTES:
            assert isinstance(file.source, Path)
            with contextlib.suppress(OSError):
                yield file.path, file.source.read_text(encoding="utf-8", errors="replace")


def differences(before: bytes, after: bytes) -> list[str]:
    """Return the files in which two indexes differ, with what happened to each."""
    old, new = ({f.path: (f.sha256, f.kind) for f in contract.parse_index(i)}
                for i in (before, after))  # fmt: skip
    notes = {path: " (new)" for path in new.keys() - old.keys()}
    notes |= {path: " (removed)" for path in old.keys() - new.keys()}
    notes |= {path: "" for path in new.keys() & old.keys() if new[path] != old[path]}
    return [printable(path) + notes[path] for path in sorted(notes)]


def _own_folders(site: Site | None) -> frozenset[Path]:
    """Return dlctl's own folders on this machine: who trains in the home folder has them in it.

    Each submission would send all that the ones before have sent.
    """
    own = [xdg_directory("XDG_STATE_HOME", ".local/state") / "dlctl",
           xdg_directory("XDG_DATA_HOME", ".local/share") / "dlctl"]  # fmt: skip
    if site is not None and site.transport.kind == "local":
        own.append(Path(site.root))
    return frozenset(path.resolve() for path in own)


def _walk(
    root: Path, own: frozenset[Path], problems: list[str], left_out: list[Excluded]
) -> Iterator[tuple[Entry, Ignore]]:
    pending = [(root, "", Ignore.of_ancestors(root))]
    while pending:
        folder, prefix, outer = pending.pop()
        ignore = outer.below(folder, prefix)
        try:
            items = sorted(os.scandir(folder), key=lambda item: item.name)
        except OSError as error:
            problems.append(f"{printable(prefix or '.')}: can't be read: {error.strerror}")
            continue
        for item in items:
            path, place = prefix + item.name, Path(item.path)
            is_folder = item.is_dir(follow_symlinks=False)
            is_own = (
                is_left_out(item.name)
                or path == "results"
                or (is_folder and (place in own or (place / "pyvenv.cfg").exists()))
            )
            rule = BY_DLCTL if is_own else ignore.leaves_out(path, is_folder)
            if rule:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    left_out.append(exclude(path, place, is_folder, rule))
            elif is_folder:
                pending.append((place, path + "/", ignore))
            elif file := _examine(root, place, path, problems):
                yield file, ignore


def _examine(root: Path, source: Path, path: str, problems: list[str]) -> Entry | None:
    try:
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            return _examine_link(root, source, path, problems)
    except OSError as error:
        problems.append(f"{printable(path)}: can't be read: {error.strerror}")
        return None
    if _is_own_output(status):
        return None
    if not stat.S_ISREG(status.st_mode):
        problems.append(f"{printable(path)}: a socket, pipe or device can't be sent. {_LEAVE_OUT}.")
        return None
    mode = 0o755 if status.st_mode & 0o100 else 0o644
    return Entry(path, source, mode, size_bytes=status.st_size)


def _is_own_output(status: os.stat_result) -> bool:
    """Return whether this process prints into the file, which then changes while it is sent."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # closed
            if os.path.samestat(status, os.fstat(descriptor)):
                return True
    return False


def _examine_link(root: Path, source: Path, path: str, problems: list[str]) -> Entry | None:
    link = str(source.readlink())
    lexical = Path(os.path.normpath(source.parent / link))
    # Before Python 3.13 `Path.resolve` raises RuntimeError for links in a circle.
    real = Path(os.path.realpath(source))
    inside = lexical.is_relative_to(root) and real.is_relative_to(root)
    if link.startswith("/") or not inside:
        problems.append(
            f"{printable(path)}: a link that points outside the folder ({printable(link)}). "
            f"{_LEAVE_OUT}, or copy the file."
        )
        return None
    return Entry(path, source, 0o777, link, size_bytes=0)


def _is_fit(file: Entry, ignore: Ignore, problems: list[str]) -> bool:
    """Look for secrets; an explicit `!path` in .dlctlignore allows a file."""
    if file.link is not None:
        return True
    assert isinstance(file.source, Path)
    found = secret_in_name(file.path)
    try:
        found = found or secret_in_content(file.source, file.content_bytes)
        if not os.access(file.source, os.R_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        problems.append(
            f"{printable(file.path)}: can't be read: {error.strerror}. {_LEAVE_OUT}, or chmod u+r."
        )
        return False
    if found and not ignore.allows(file.path):
        problems.append(
            f"{printable(file.path)}: looks like a secret ({found}). {_LEAVE_OUT}, or allow it "
            f"there with `!/{printable(file.path)}`."
        )
        return False
    return True


def _refuse(problems: Sequence[str]) -> None:
    if not problems:
        return
    shown = list(problems[:_SHOWN])
    more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise BundleError(
        "the folder can't be sent:\n  " + "\n  ".join(shown) + more, problems=list(problems)
    )


def _too_big(files: Sequence[Entry], size_bytes: int, limit_bytes: int) -> BundleError:
    totals: dict[str, int] = {}
    for file in files:
        top, slash, _ = file.path.partition("/")
        totals[top + slash] = totals.get(top + slash, 0) + file.content_bytes
    largest = sorted(totals.items(), key=lambda item: -item[1])[:5]
    names = ", ".join(f"{printable(name)} ({format_bytes(size)})" for name, size in largest)
    return BundleError(
        f"the folder has {format_bytes(size_bytes)} to send, the limit is "
        f"{format_bytes(limit_bytes)}; the largest are {names}",
        hint="Exclude data and results with lines in .dlctlignore; put data into a data store.",
    )


def _sent(file: Entry) -> SentFile:
    if file.link is not None:
        return SentFile(contract.digest_of_link(file.link), 0, "l", file.path)
    assert isinstance(file.source, Path)
    kind: Literal["f", "x"] = "x" if file.mode & 0o100 else "f"
    try:
        digest = sha256_of(file.source)
    except OSError as error:
        raise BundleError(
            f"{printable(file.path)} can't be read: {error.strerror}", hint=f"{_LEAVE_OUT}."
        ) from error
    return SentFile(digest, file.content_bytes, kind, file.path)
