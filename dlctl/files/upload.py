"""Uploads files: one tar stream in one round trip, verified on the site, then renamed into place.

Built on `Transport` only, so it works the same on this machine and over ssh. Prints nothing;
progress goes to a callback. `dlctl.files.download` is the reverse; `dlctl.files.small_files` reads
and writes single small files.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dlctl.errors import ConnectionLost, TransportTimeout
from dlctl.files import contents
from dlctl.files.archive import END_OF_ARCHIVE, Entry, write_entry
from dlctl.files.listing import grouped
from dlctl.files.site_folders import (
    NO_FOLDER,
    NO_MATCH,
    NO_RENAME,
    NO_UNPACK,
    begin_in_root,
    explained,
    feed,
)
from dlctl.transport.base import Completed, Transport

Progress = Callable[[int, int], None]
"""Called with the bytes transferred and the total."""

_SUMS = "SHA256SUMS"
_TEMPORARY_PREFIX = ".dlctl-upload."
_TRIES = 3
"""How often contents are sent that another upload takes away."""


@dataclass(frozen=True)
class Tree:
    """Files that go to one place."""

    target: str
    """Relative to the root of the upload."""
    entries: Sequence[Entry]
    repairs: bool = False
    """If the target exists: remove its other files, as its name is the hash of its content; else
    the entries are put into it, replacing files of the same name."""


def upload(
    transport: Transport, root: str, trees: Sequence[Tree], *, on_progress: Progress | None = None,
    umask: int = 0o077,
) -> None:  # fmt: skip
    """Send all trees in one stream; each appears under `root` whole or not at all.

    Args:
        root: Absolute, or relative to the home directory; made if it does not exist.
        umask: The permissions that no file and no folder gets.

    Raises:
        TransferError: disk full, quota, permission, damage: one sentence. Nothing half-written is
            left; trees that were complete before may stay.
    """
    wanted = contents.large_contents(entry for tree in trees for entry in tree.entries)
    deposited_bytes = sum(entry.content_bytes for entry in wanted.values())
    rest = (e for tree in trees for e in tree.entries if e.sha256 not in wanted)
    progress = _Progress(deposited_bytes + sum(entry.content_bytes for entry in rest), on_progress)
    for _ in range(_TRIES):
        if wanted:
            _deposit(transport, root, wanted, progress, umask)
            progress.set(deposited_bytes)
        end = _send(transport, root, trees, wanted, progress, umask)
        if end.exit_code != contents.GONE:
            break
    if end.exit_code:
        raise explained(transport, root, end)


def _send(
    transport: Transport, root: str, trees: Sequence[Tree], wanted: Mapping[str, Entry],
    progress: _Progress, umask: int,
) -> Completed:  # fmt: skip
    """Send what has not been sent by its sum, and have the site put all of it into place."""
    sent = [replace(t, entries=[e for e in t.entries if e.sha256 not in wanted]) for t in trees]
    total_bytes = sum(entry.content_bytes for tree in sent for entry in tree.entries)
    token = secrets.token_hex(8)
    parts = [f"{token}-{index}" for index in range(len(trees))]
    place = [contents.link_script(part, [e for e in tree.entries if e.sha256 in wanted], umask)
             for part, tree in zip(parts, trees, strict=True)]  # fmt: skip
    place += [_rename_command(*pair) for pair in zip(parts, trees, strict=True)]
    place.append(contents.remove_script(wanted))
    temporary = f"{_TEMPORARY_PREFIX}{token}"
    script = _upload_script(root, temporary, "\n".join(place), total_bytes, umask)
    stream = _blocks(_stream(sent, parts, umask))
    return feed(transport, script, stream, total_bytes, progress.add)


class _Progress:
    """Tells how much the site has of what is to be there."""

    def __init__(self, total_bytes: int, on_progress: Progress | None) -> None:
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._on_progress = on_progress

    def set(self, size_bytes: int) -> None:
        """Note that the site has so much."""
        self._done_bytes = 0
        self.add(size_bytes)

    def add(self, size_bytes: int) -> None:
        """Note that so much has been sent."""
        self._done_bytes = min(self._done_bytes + size_bytes, self._total_bytes)
        if self._on_progress:
            self._on_progress(self._done_bytes, self._total_bytes)


def _deposit(
    transport: Transport, root: str, wanted: Mapping[str, Entry], progress: _Progress, umask: int
) -> None:
    """Send large contents; after a lost connection, go on as long as that helps."""

    def send_group(group: Sequence[tuple[str, Entry]]) -> None:
        entries = [replace(entry, path=sha256, mode=0o644, sha256="") for sha256, entry in group]
        done_bytes = 0

        def on_progress(now_bytes: int, _: int) -> None:
            nonlocal done_bytes
            progress.add(now_bytes - done_bytes)
            done_bytes = now_bytes

        upload(transport, root, [Tree(contents.FOLDER, entries)], umask=umask,
               on_progress=on_progress)  # fmt: skip

    mine, furthest, vain = contents.this_machine(), -1, 0
    while True:
        whole, begun = contents.ask(transport, root, wanted, mine, umask)
        here_bytes = sum(wanted[s].content_bytes for s in whole) + sum(begun.values())
        progress.set(here_bytes)
        vain = 0 if here_bytes > furthest else vain + 1
        furthest = max(furthest, here_bytes)
        lacking = [(s, entry) for s, entry in wanted.items() if s not in whole]
        try:
            small = [each for each in lacking if each[1].content_bytes < contents.ALONE_BYTES]
            for group in grouped(small, lambda each: each[1].content_bytes, contents.ALONE_BYTES):
                send_group(group)
            for sha256, entry in lacking:
                if entry.content_bytes >= contents.ALONE_BYTES:
                    contents.send_alone(transport, root, sha256, entry, begun.get(sha256, 0), mine,
                                        progress.add, umask)  # fmt: skip
            return
        except (ConnectionLost, TransportTimeout):
            if vain >= contents.TRIES - 1:
                raise


def _stream(trees: Sequence[Tree], parts: Sequence[str], umask: int) -> Iterator[bytes]:
    digests: dict[str, str] = {}
    for part, tree in zip(parts, trees, strict=True):
        for entry in (Entry("", mode=0o755), *tree.entries):
            prefix = f"{part}/" if entry.path else part
            # Root's tar ignores the umask.
            yield from write_entry(replace(entry, mode=entry.mode & ~umask), prefix, digests)
    yield from write_entry(Entry(_SUMS, _sums(digests)))
    yield END_OF_ARCHIVE


def _blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Join small chunks: each write costs a packet."""
    parts: list[bytes] = []
    size_bytes = 0
    for chunk in chunks:
        parts.append(chunk)
        size_bytes += len(chunk)
        if size_bytes >= 128 * 1024:
            yield b"".join(parts)
            parts, size_bytes = [], 0
    yield b"".join(parts)


def _sums(digests: dict[str, str]) -> bytes:
    """Return the lines for `sha256sum -c`.

    Names with a newline or a backslash have no portable form there; for them tar's exit code has to
    be enough.
    """
    plain = (item for item in digests.items() if not set(item[0]) & set("\\\n\r"))
    lines = "".join(f"{digest}  {path}\n" for path, digest in plain)
    return lines.encode("utf-8", "surrogateescape")


def _upload_script(root: str, temporary: str, rename: str, total_bytes: int, umask: int) -> str:
    return f"""\
{begin_in_root(root, umask)}
root=$(pwd) || exit {NO_FOLDER}
# What uploads that were cut off left behind, a day later at the latest.
find . ! -name . -prune -type d -name '{_TEMPORARY_PREFIX}*' -mtime +0 \\
    -exec rm -rf {{}} + 2>/dev/null
tmp=$root/{temporary}
# Ignored meanwhile: a connection that is cut brings the end of the stream, and then a signal.
trap 'trap "" HUP INT PIPE TERM; cd /; rm -rf "$tmp"' EXIT
trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 141' PIPE; trap 'exit 143' TERM
mkdir -m 700 -- "$tmp" && cd -- "$tmp" || exit {NO_FOLDER}
# -m: with the time of now, as sites remove what is old.
tar -xmof - || exit {NO_UNPACK}
[ -f {_SUMS} ] || {{ echo 'the stream was cut short' >&2; exit {NO_UNPACK}; }}
check=
command -v sha256sum >/dev/null 2>&1 && check='sha256sum -c'
[ -n "$check" ] || {{ command -v shasum >/dev/null 2>&1 && check='shasum -a 256 -c'; }}
if [ -n "$check" ] && [ -s {_SUMS} ]; then
    $check {_SUMS} >.check 2>&1 || {{ grep -v ': OK$' .check | head -n 5 >&2; exit {NO_MATCH}; }}
elif [ -s {_SUMS} ]; then
    size=$(find . -type f ! -name {_SUMS} ! -name .check -exec cat {{}} + | wc -c)
    [ "$size" -eq {total_bytes} ] || {{ echo "$size bytes arrived" >&2; exit {NO_MATCH}; }}
fi
{rename}
exit 0
"""


def _rename_command(part: str, tree: Tree) -> str:
    """Return the commands that move one unpacked tree into place.

    If another upload has made the folder in between, `mv` puts ours inside it, where it is removed.
    """
    target = f'"$root"/{shlex.quote(tree.target)}'
    parent = f'"$root"/{shlex.quote(tree.target.rpartition("/")[0] or ".")}'
    merge = f"""(cd {part} &&
    find . -type d -exec sh -c 'for d; do mkdir -p -- "$0/$d" || exit; done' {target} {{}} + &&
    find . ! -type d -exec sh -c 'for f; do mv -f -- "$f" "$0/$f" || exit; done' {target} {{}} +
    ) || exit {NO_RENAME}"""
    # Another upload may just remove there what it made in vain: `find` fails, and then not again.
    others = f"""
    try=0
    until (cd {target} && find . ! -type d -exec sh -c 'part=$0; for f; do
        [ -e "$part/$f" ] || [ -L "$part/$f" ] || rm -f -- "$f" || exit; done' "$tmp"/{part} {{}} +)
    do try=$((try + 1)); [ $try -lt 5 ] || exit {NO_RENAME}
    done"""
    there = f"{others}\n{merge}" if tree.repairs else merge
    return f"""\
[ -d {parent} ] || mkdir -p -- {parent} || exit {NO_RENAME}
if [ -d {target} ]; then {there}
else
    mv -- {part} {target} || exit {NO_RENAME}
    [ ! -e {target}/{part} ] || rm -rf -- {target}/{part}
fi"""
