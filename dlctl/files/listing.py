"""Lists files on a site, with their sizes and what identifies their present content. One call.

Nothing is read to be listed. Sums are asked for only where a file here may be the same.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from dlctl.contract.ground.safe_text import printable
from dlctl.errors import TransferError
from dlctl.transport.base import Transport

T = TypeVar("T")
IDLE_TIMEOUT_S = 300.0
"""The longest time without progress of an upload or a download."""
BATCH_BYTES = 60_000
"""File names in one argument list on the site; POSIX guarantees little more."""
SHA256 = """\
if command -v openssl >/dev/null 2>&1 && openssl dgst -sha256 </dev/null >/dev/null 2>&1; then
    sha256() { openssl dgst -sha256 | sed 's/.* //'; } # many a sha256sum uses no SHA instructions
elif command -v sha256sum >/dev/null 2>&1; then sha256() { sha256sum | cut -c 1-64; }
elif command -v shasum >/dev/null 2>&1; then sha256() { shasum -a 256 | cut -c 1-64; }
else sha256() { cat >/dev/null; }
fi"""
"""Shell that defines a filter from bytes to their sum; from nothing to nothing without a program
for it."""
_STAT = "stat -c '%s %a %i %y %z'"
_STAT_OF_BSD = "stat -f '%z %Lp %i %Fm %Fc'"
_MISSING = 71
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class SiteFile:
    """One file on the site."""

    path: str
    """Relative to the base of the listing."""
    kind: str
    """`f` a file, `l` a symbolic link, `d` a folder that can't be read, `o` what can't be sent: a
    pipe, a socket, a device."""
    size_bytes: int = 0
    sha256: str = ""
    """Empty if nobody has told: then `stamp` says whether it is still the same."""
    stamp: str = ""
    """Inode and times: it changes with the content."""
    is_executable: bool = False

    @property
    def identity(self) -> str:
        """Return what stays the same as long as the content does."""
        return self.sha256 or f"{self.size_bytes} {self.stamp}"


def stat_script(names: str) -> str:
    """Return a command that prints a line for each file, as `parsed_stat` takes it."""
    return f"{_STAT} -- {names} 2>/dev/null || {_STAT_OF_BSD} {names}"


def parsed_stat(path: str, line: str, sha256: str = "") -> SiteFile:
    """Return a file from its line of `stat_script`."""
    size, mode, stamp = line.split(" ", 2)
    return SiteFile(path, "f", int(size), sha256, stamp.strip(), bool(int(mode, 8) & 0o100))


def list_files(
    transport: Transport, base: str, paths: Sequence[str] | Mapping[str, str], *,
    missing_ok: bool = False,
) -> list[SiteFile]:  # fmt: skip
    """Return all files at and below the paths, which are relative to `base`.

    Args:
        paths: Files and folders; or a mapping of files to the sha256 that each must have.
        missing_ok: A path that does not exist is no error.

    Raises:
        TransferError: a path does not exist, or the files change too fast to be listed.
    """
    known = paths if isinstance(paths, Mapping) else {}
    if not paths:
        return []
    script = f"""\
cd -- {shlex.quote(base)} || exit {_MISSING}
{listing_script(paths, missing_ok=missing_ok)}
exit 0"""
    end = transport.run(script, timeout_s=_TIMEOUT_S)
    if end.exit_code:
        raise TransferError(
            f"{transport.name}: {base}: {end.last_error_line or end.exit_code}",
            hint="Check that it exists, and its permissions.",
        )
    return list(parsed_listing(transport.name, end.stdout, known))


def listing_script(paths: Sequence[str] | Mapping[str, str], *, missing_ok: bool) -> str:
    """Return commands that list what is at and below paths, as `parsed_listing` takes it."""
    batch = f"""\
printf "f%s\\0" "$@"; printf s
{stat_script('"$@"')}
printf "\\0\""""
    check = f"""\
    for f; do
        [ -e "$f" ] || [ -L "$f" ] || {{ printf '%s is not there' "$f" >&2; exit {_MISSING}; }}
    done"""
    closed = 'for f; do [ -r "$f" ] && [ -x "$f" ] || printf "d%s\\0" "$f"; done'
    odd = 'for f; do if [ -L "$f" ]; then printf "l%s\\0" "$f"; else printf "o%s\\0" "$f"; fi; done'
    lists = "\n".join(f"list {' '.join(words)}" for words in batches(paths))
    return f"""\
LC_ALL=C; export LC_ALL
list() {{
{"" if missing_ok else check}
    find -H "$@" -type f -exec sh -c {shlex.quote(batch)} sh {{}} + \
        -o -type d -exec sh -c {shlex.quote(closed)} sh {{}} + \
        -o -exec sh -c {shlex.quote(odd)} sh {{}} + 2>/dev/null
}}
{lists}"""


def grouped(
    items: Iterable[T], size_of: Callable[[T], int], most_bytes: int, most: float = math.inf
) -> Iterator[list[T]]:
    """Yield items in groups: a group has one item, or no more bytes and items than these."""
    group: list[T] = []
    size_bytes = 0
    for item in items:
        if group and (size_bytes + size_of(item) > most_bytes or len(group) >= most):
            yield group
            group, size_bytes = [], 0
        group.append(item)
        size_bytes += size_of(item)
    if group:
        yield group


def batches(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield quoted paths, as many as fit into one argument list."""
    words = (shlex.quote(f"./{path}") for path in paths)
    return grouped(words, lambda word: len(word) + 1, BATCH_BYTES)


def parsed_listing(name: str, answer: bytes, known: Mapping[str, str]) -> Iterator[SiteFile]:
    """Yield the files of an answer, whose fields end with NUL.

    Args:
        name: Of the site, for messages.
        answer: What `listing_script` has printed.
        known: The sums that files must have.

    Raises:
        TransferError: the files changed too fast to be listed.
    """
    names: list[str] = []
    for field in answer.split(b"\0"):
        kind, text = field[:1], field[1:].decode("utf-8", "surrogateescape")
        if kind == b"f":
            names.append(path_of(text))
        elif kind == b"s":
            lines = text.split("\n")[:-1]
            try:
                if len(lines) != len(names):
                    raise ValueError
                for path, line in zip(names, lines, strict=True):
                    yield parsed_stat(path, line, known.get(path, ""))
            except ValueError:
                raise TransferError(
                    f"{name}: the files changed while they were listed", hint="Try again."
                ) from None
            names = []
        elif kind:
            yield SiteFile(path_of(text), kind.decode(errors="replace"))


def path_of(text: str) -> str:
    """Return a path as find and tar print it without what says nothing, such as `./`."""
    path = text[2:] if text.startswith("./") else text
    if "//" in text or "./" in path or path.endswith(("/", "/.")) or path in ("", "."):
        return str(PurePosixPath(text))
    return path  # PurePosixPath takes a while for each of many files


def sums(transport: Transport, base: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of files, which the site reads for it; without those that it can't read."""
    if not paths:
        return {}
    lists = "\n".join(f"sums {' '.join(words)}" for words in batches(paths))
    script = f"""\
LC_ALL=C; export LC_ALL
{SHA256}
sums() {{ for f; do sha256 <"$f"; printf '\\0'; done 2>/dev/null; }}
cd -- {shlex.quote(base)} || exit {_MISSING}
{lists}
exit 0"""
    answer = transport.run(script, timeout_s=_TIMEOUT_S).text.split("\0")[:-1]
    pairs = zip(paths, (text.strip() for text in answer), strict=False)
    return {path: digest for path, digest in pairs if len(digest) == 64}


def refuse_outside(path: str) -> None:
    """Refuse a path that would lead out of a folder.

    Raises:
        TransferError
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise TransferError(
            f"{printable(path)!r} is not inside the folder: refused",
            hint="Ask for paths below the job directory.",
        )
