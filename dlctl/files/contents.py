"""Sends contents of files to a site, each once and by its sum, before the trees that hold them.

What the site has in another folder that was sent is copied there. A large content goes on where an
interrupted one ended; the site makes its sum as it arrives. The contents wait below the root in
`store/.contents/`, from which `upload` moves them into the trees; what nobody fetched for a week is
removed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from dlctl.contract import SENT_INDEX
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import ConnectionLost
from dlctl.files.archive import Entry, read_exactly
from dlctl.files.listing import SHA256, batches
from dlctl.files.site_folders import NO_FOLDER, NO_MATCH, NO_UNPACK, begin_in_root, explained, feed
from dlctl.transport.base import Transport

FOLDER = "store/.contents"
"""Below the root."""
WORTH_BYTES = 16 * 1024 * 1024
"""A tree with less to send goes in one stream, without a question before."""
LEAST_BYTES = 64 * 1024
"""Smaller files are not worth a line of the question."""
ALONE_BYTES = 32 * 1024 * 1024
"""From this size on a content goes alone, and its beginning is kept."""
TRIES = 3
_ASK_TIMEOUT_S = 3600.0
_SHORT, _OTHER, GONE = 77, 78, 79
"""Exit codes: the stream was cut short, somebody else sends the same content or has taken it."""


def large_contents(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return an entry for each content that is sent by its sum; none if they are not worth it."""
    found = {
        entry.sha256: entry for entry in entries
        if entry.sha256 and isinstance(entry.source, Path)
        and (entry.content_bytes) >= LEAST_BYTES
    }  # fmt: skip
    total_bytes = sum(entry.content_bytes for entry in found.values())
    return found if total_bytes >= WORTH_BYTES else {}


def ask(
    transport: Transport, root: str, wanted: Mapping[str, Entry], mine: str, umask: int
) -> tuple[set[str], dict[str, int]]:
    """Return which contents a site has, and how many bytes of others by an earlier try.

    Those of other folders there are copied first.

    Args:
        wanted: An entry for each sum.
        mine: The name of this machine in the names of what has arrived in part.
        umask: The permissions that nothing gets.

    Raises:
        TransferError, RemoteCommandError
    """
    lines = "".join(f"{sha256} {entry.size_bytes}\n" for sha256, entry in wanted.items())
    script = _ask_script(root, mine, umask)
    end = transport.run(script, stdin=lines.encode(), timeout_s=_ASK_TIMEOUT_S)
    if end.exit_code:
        raise explained(transport, root, end)
    whole, begun = set[str](), dict[str, int]()
    for line in end.lines:
        sha256, _, state = line.partition(" ")
        if state == "whole":
            whole.add(sha256)
        elif state.strip().isdecimal():
            begun[sha256] = int(state)
    return whole, begun


def _ask_script(root: str, mine: str, umask: int) -> str:
    return f"""\
{begin_in_root(root, umask)}
mkdir -p {FOLDER} && cd {FOLDER} || exit {NO_FOLDER}
{SHA256}
find . ! -name . -prune -mtime +6 -exec rm -rf {{}} + 2>/dev/null
cat >.wanted.$$ || exit {NO_FOLDER}
trap 'rm -f .wanted.$$' EXIT
# Where else the site has them: `sum size folder/path`.
set -- ../*/{SENT_INDEX}
[ ! -f "$1" ] || awk 'FNR == NR {{ wanted[$1] = 1; next }}
    FNR == 1 {{ folder = FILENAME; sub(/\\/[^\\/]*$/, "", folder) }}
    ($1 in wanted) && $3 != "l" && index($0, "\\\\") == 0 {{
        delete wanted[$1]; sum = $1; size = $2; sub(/^[^ ]* [^ ]* [^ ]* /, "")
        print sum, size, folder "/" $0 }}' .wanted.$$ "$@" | while read -r sum size path; do
    [ ! -f "$sum" ] && [ -f "$path" ] && [ $(wc -c <"$path") -eq "$size" ] || continue
    here=$(tee ".copy.$$" <"$path" | sha256)
    if [ "${{here:-$sum}}" = "$sum" ]; then mv -f ".copy.$$" "$sum"; else rm -f ".copy.$$"; fi
done
while read -r sum size; do
    if [ -f "$sum" ] && [ $(wc -c <"$sum") -eq "$size" ]; then
        touch -- "$sum" # for another week
        echo "$sum whole"
    elif [ -f "$sum.{mine}" ]; then echo "$sum $(wc -c <"$sum.{mine}")"
    fi
done <.wanted.$$
exit 0"""


def send_alone(
    transport: Transport, root: str, sha256: str, entry: Entry, begun_bytes: int, mine: str,
    on_sent: Callable[[int], None], umask: int,
) -> None:  # fmt: skip
    """Send a content, or what follows after the bytes that have arrived.

    Raises:
        TransferError: it does not arrive as it is here.
        TransportError
    """
    size_bytes, source = entry.content_bytes, entry.source
    assert isinstance(source, Path)
    for _ in range(TRIES):
        begun_bytes = begun_bytes if begun_bytes <= size_bytes else 0
        script = _script(root, sha256, f"{sha256}.{mine}", begun_bytes, size_bytes, umask)
        rest = read_exactly(source, size_bytes - begun_bytes, begun_bytes)
        end = feed(transport, script, rest, size_bytes, on_sent)
        if not end.exit_code:
            return
        if end.exit_code not in (NO_MATCH, _OTHER):
            break
        begun_bytes, mine = 0, secrets.token_hex(8)  # somebody sends the same, or it was damaged
    if end.exit_code == _SHORT and not end.error_text.strip():
        raise ConnectionLost(
            f"{transport.name}: {printable(entry.path)} was cut short", hint="Try again."
        )
    raise explained(transport, root, end)


def _script(
    root: str, sha256: str, part: str, begun_bytes: int, size_bytes: int, umask: int
) -> str:
    return f"""\
LC_ALL=C; export LC_ALL
umask {umask:03o}
trap '' HUP # what has arrived is kept
cd -- {shlex.quote(f"{root}/{FOLDER}")} || exit {NO_FOLDER}
{SHA256}
if [ {begun_bytes} = 0 ]; then
    rm -f {part} # somebody may be writing to it: a file of its own does not mix with that
    true >{part} || exit {NO_FOLDER}
else [ $(wc -c <{part}) -eq {begun_bytes} ] || exit {_OTHER}
fi
node=$(ls -i {part})
sum=$({{ cat {part}; tee -a {part}; }} | sha256)
[ "$(ls -i {part} 2>/dev/null)" = "$node" ] || exit {_OTHER}
size=$(wc -c <{part})
[ "$size" -ge {size_bytes} ] || exit {_SHORT}
[ "$size" -eq {size_bytes} ] && [ "${{sum:-{sha256}}}" = {sha256} ] ||
    {{ rm -f {part}; exit {NO_MATCH}; }}
mv -f {part} {sha256}"""


def link_script(part: str, entries: Sequence[Entry], umask: int) -> str:
    """Return the commands that put contents into an unpacked tree, with the time of now."""
    if not entries:
        return ""
    puts, paths, taken = [], defaultdict[str, list[str]](list), set[str]()
    for entry in entries:
        put = "again" if entry.sha256 in taken else "put"
        puts.append(f"{put} {entry.sha256} {shlex.quote(f'./{entry.path}')}")
        taken.add(entry.sha256)
        paths[f"{(entry.mode & ~umask) & 0o777:o}"].append(entry.path)
    changes = "\n".join(
        f"chmod {mode} {' '.join(words)} || exit {NO_UNPACK}"
        for mode, names in paths.items() for words in batches(names)
    )  # fmt: skip
    news = "\n".join(puts)
    index = SENT_INDEX
    return f"""\
again() {{ # sum path: gets a copy
    cp -- "$root"/{FOLDER}/"$1" "$2" && return
    [ -f "$root"/{FOLDER}/"$1" ] || exit {GONE}
    exit {NO_UNPACK}
}}
put() {{ # sum path: the first of its paths gets the content itself
    ln -- "$root"/{FOLDER}/"$1" "$2" 2>/dev/null || again "$@"
}}
(cd -- {part} || exit {NO_UNPACK}
{news}
{changes}
find . -type f -exec touch {{}} +
[ ! -f {index} ] || touch {index} # no file may be newer
) || exit"""


def remove_script(sums: Iterable[str]) -> str:
    """Return the commands that remove contents that are in their trees."""
    names = "\n".join(sorted(set(sums)))
    if not names:
        return ":"
    return f"""\
(cd "$root"/{FOLDER} && xargs rm -f) <<'end of sums'
{names}
end of sums"""


def this_machine() -> str:
    """Return what tells the parts of this machine from those of others."""
    who = f"{socket.gethostname()} {os.getuid() if hasattr(os, 'getuid') else os.getlogin()}"
    return hashlib.sha256(who.encode()).hexdigest()[:12]
