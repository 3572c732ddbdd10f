"""Read parts of files on a site, many in one round trip, compressed where the site has gzip."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dlctl.errors import TransferError
from dlctl.files.small_files import SMALL_BYTES, sizes_script, unpacked
from dlctl.transport.base import Transport

_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Range:
    """A part of a file; it may be shorter, or absent."""

    path: str
    """Relative to the folder."""
    offset: int
    length_bytes: int


def read_sizes(transport: Transport, folder: str, globs: Sequence[str]) -> dict[str, int]:
    """Return the size of each matching file, by its path relative to the folder.

    Raises:
        TransportError
    """
    script = (
        f"LC_ALL=C; export LC_ALL\ncd -- {shlex.quote(folder)} 2>/dev/null || exit 0\n"
        f"{sizes_script(globs)}"
    )
    found = {}
    for line in transport.run(script, timeout_s=_TIMEOUT_S).lines:
        size, _, name = line.partition(" ")
        if size.isdecimal():
            found[name] = int(size)
    return found


def read_ranges(transport: Transport, folder: str, ranges: Sequence[Range]) -> list[bytes]:
    """Return the content of each range, empty if its file is absent.

    Raises:
        TransferError: the answer is incomplete.
        TransportError
    """
    if not ranges:
        return []
    mark = f"<{secrets.token_hex(16)}>"
    total = sum(each.length_bytes for each in ranges)
    commands = "\n".join(f"{_command(each)}; printf '%s' '{mark}'" for each in ranges)
    packed = "command -v gzip >/dev/null 2>&1" if total > SMALL_BYTES else "false"
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(folder)} 2>/dev/null || exit 0
parts() {{
{commands}
}}
if {packed}; then printf z; parts 2>/dev/null | gzip -c; else printf p; parts 2>/dev/null; fi"""
    answer = transport.run(script, timeout_s=_TIMEOUT_S).stdout
    content = unpacked(answer)
    parts = content.split(mark.encode())
    if not answer:
        return [b""] * len(ranges)
    if len(parts) != len(ranges) + 1:
        raise TransferError(
            f"{transport.name}: a part of the metrics in {folder} did not arrive",
            hint="try again; if it stays, look at the folder on the site",
        )
    return parts[:-1]


def _command(wanted: Range) -> str:
    name = shlex.quote(f"./{wanted.path}")
    return f"tail -c +{wanted.offset + 1} <{name} | head -c {wanted.length_bytes}"
