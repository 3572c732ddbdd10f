"""Reads and writes small files on a site, several in one round trip.

Answers are framed by a random line that no file can hold: names and contents may be any bytes, and
a file may grow or be replaced while it is read. Built on `Transport` only.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import zlib
from collections.abc import Mapping, Sequence

from dlctl.errors import TransferError
from dlctl.files.site_folders import explained
from dlctl.transport.base import Completed, Transport
from dlctl.transport.resident import Look, Resident, ask

_TIMEOUT_S, _TEXTS_TIMEOUT_S = 60.0, 90.0
_NO_FOLDER = 71
SMALL_BYTES = 512
"""Compressing so little costs more than it saves."""
_NAMES_AT_ONCE = 400
"""In one argument list, whose length is limited."""
_ARGUMENT_BYTES = 480 * 1024
"""Linux allows 2 MiB, unless the limit of the stack is low."""


def read_files(
    transport: Transport, paths: Sequence[str], *, timeout_s: float = _TIMEOUT_S
) -> dict[str, bytes | None]:
    """Return the content of each file; None if it does not exist.

    Args:
        paths: Absolute, or relative to the home directory.

    Raises:
        TransferError: a file exists but can't be read, or the file system does not answer, so that
            its existence is unknown.
    """
    return read_files_after(transport, "", paths, timeout_s=timeout_s)[1] if paths else {}


def read_files_after(
    transport: Transport, before: str, paths: Sequence[str], *, timeout_s: float = _TIMEOUT_S
) -> tuple[bytes, dict[str, bytes | None]]:
    """Run a script, then read files as `read_files` does: all in one round trip.

    Returns:
        What the script printed, and the contents.

    Raises:
        TransferError: as `read_files`.
    """
    mark = _mark()
    names = " ".join(shlex.quote(path) for path in paths)
    script = f"""\
(:
{before}
)
printf '%s' '{mark}'
for f in {names}; do
    if [ -f "$f" ]; then
        printf y
        # A file that is replaced at this very moment is read again.
        cat <"$f" || {{ [ ! -e "$f" ] || exit 1; }}
    else
        d=${{f%/*}}
        # Only a user who can search its folder knows that a file does not exist.
        [ "$d" = "$f" ] || [ -x "$d" ] || case $(LC_ALL=C ls -d "$f" 2>&1) in
            *'No such file'* | *'Not a directory'*) ;;
            *) LC_ALL=C ls -d "$f"; exit 1 ;;
        esac
        printf n
    fi
    printf '%s' '{mark}'
done"""
    end = _checked(transport, ask(transport, script, timeout_s=timeout_s))
    contents = _frames(transport, end.stdout, mark)
    if len(contents) != len(paths) + 1:
        raise _damaged(transport)
    printed = contents.pop(0)
    found = zip(paths, contents, strict=True)
    return printed, {p: content[1:] if content[:1] == b"y" else None for p, content in found}


def read_texts(transport: Transport, paths: Sequence[str]) -> dict[str, bytes | None]:
    """Return what `read_files` returns, for thousands of text files in a second.

    No process is started for each. A last line that lacks its newline gets one.

    Raises:
        TransferError: as `read_files`.
    """
    if isinstance(transport, Resident):
        return read_clock_and_texts(transport, paths)[1]
    return read_texts_after(transport, "", paths)[1]


def read_texts_after(
    transport: Transport, before: str, paths: Sequence[str]
) -> tuple[Completed, dict[str, bytes | None]]:
    """Run a script, then read files as `read_texts` does: all in one round trip.

    Returns:
        How the script ended, with all that was written to standard error, and the contents.

    Raises:
        TransferError: as `read_files`.
    """
    if isinstance(transport, Resident) and transport.is_there:
        done = ask(transport, before, timeout_s=_TEXTS_TIMEOUT_S)
        return done, read_clock_and_texts(transport, paths)[1]
    mark = _mark()
    odd = [path for path in paths if "\n" in path]
    paths = [path for path in paths if "\n" not in path]
    longest = max(map(len, paths), default=1)
    at_once = max(1, _ARGUMENT_BYTES // (4 * longest))  # a character may take four bytes
    chunks = [paths[at : at + at_once] for at in range(0, len(paths), at_once)]
    script = f"(:\n{before}\n)\nprintf '%s%s%s' '{mark}' \"$?\" '{mark}'\n" if before else ""
    script += "LC_ALL=C; export LC_ALL\n" + "\n".join(_texts_script(each, mark) for each in chunks)
    end = _checked(transport, transport.run(script, timeout_s=_TEXTS_TIMEOUT_S))
    answers = _frames(transport, end.stdout, mark)
    printed = answers[:2] if before else [b"", b"0"]
    answers = answers[2:] if before else answers
    if len(answers) != len(paths) + len(chunks) or not printed[-1].isdigit():
        raise _damaged(transport)
    found: dict[str, bytes | None] = {}
    unsure = []
    for chunk in chunks:
        flags, *contents = answers[: len(chunk) + 1]
        del answers[: len(chunk) + 1]
        for path, flag, content in zip(chunk, flags.decode(), contents, strict=True):
            found[path] = content[1:] if flag == "y" else None
            if flag == "?" or (flag, content) == ("y", b"?"):
                unsure.append(path)  # it vanished at this very moment, or its folder is closed
    found |= read_files(transport, [*unsure, *odd])
    return Completed(int(printed[1]), printed[0], end.stderr), found


def read_clock_and_texts(
    transport: Transport, paths: Sequence[str]
) -> tuple[float, dict[str, bytes | None]]:
    """Return the site's clock (Unix seconds) and what `read_texts` returns.

    Raises:
        TransferError: as `read_files`.
    """
    if isinstance(transport, Resident) and (answer := transport.read_texts(paths)) is not None:
        now, found = answer
        left = [path for path in paths if path not in found]
        return now, found | read_files(transport, left, timeout_s=_TEXTS_TIMEOUT_S)
    end, found = read_texts_after(transport, "date +%s", paths)
    return float(end.text), found


def _texts_script(paths: Sequence[str], mark: str) -> str:
    """Return a script that prints a flag for each path, and then its content."""
    root = os.path.commonpath(paths) if all(path[:1] == "/" for path in paths) else ""
    at = len(root) + 1 if len(root) > 1 and root not in paths else 0
    names = " ".join(
        f'"$r"/{shlex.quote(path[at:])}' if at else shlex.quote(path) for path in paths
    )
    return f"""\
r={shlex.quote(root)}
set -- {names}
flags=
for f; do
    d=${{f%/*}}
    if [ -f "$f" ]; then flags=${{flags}}y
    # Only a user who can search its folder knows that a file does not exist.
    elif [ -x "$d" ]; then flags=${{flags}}n
    else flags=${{flags}}-
    fi
done
case $flags in *-*) # perhaps the folder does not exist, perhaps it can't be reached
    for f; do
        d=${{f%/*}}
        [ -x "$d" ] || [ "$d" = "$last" ] || {{ last=$d; printf '%s/.\\n' "$d"; }}
    done | sed 's/./\\\\&/g' | xargs ls -d -- 2>&1 >/dev/null |
        grep -v -e 'No such file' -e 'Not a directory' >/dev/null &&
        flags=$(printf '%s' "$flags" | tr - '?');;
esac
printf '%s%s' "$flags" '{mark}'
awk -v mark='{mark}' -v flags="$flags" 'BEGIN {{
    for (i = 1; i < ARGC; i++) {{
        if (substr(flags, i, 1) == "n") {{ printf "%s", mark; continue }}
        got = (getline line < ARGV[i])
        printf "%s", got < 0 ? "?" : "y"
        for (; got > 0; got = (getline line < ARGV[i])) print line
        close(ARGV[i]); printf "%s", mark
    }}
}}' "$@" || exit 1"""


def read_appended(
    transport: Transport, folder: str, globs: Sequence[str], offsets: Mapping[str, int | None],
    limit_bytes: int,
) -> dict[str, bytes]:  # fmt: skip
    """Return what was appended to each matching file since its offset; omit files without news.

    Where the site has gzip, more than a few lines come compressed.

    Args:
        folder: Absolute, or relative to the home directory; need not exist yet.
        globs: Patterns below `folder` with `*`, `?` and `[…]`.
        offsets: Path (relative to `folder`) → number of bytes already read, or None for a file
            that is left alone this time; 0 if absent.
        limit_bytes: The most that is read of each file; the rest comes with the next call.

    Raises:
        TransferError: a file can't be read.
    """
    stays = transport if isinstance(transport, Resident) else None
    look = look_at(folder, globs, offsets, limit_bytes)
    if stays and stays.is_quiet(folder):
        found = stays.read_appended([look])
        if found is not None:
            return found[0]
    news = _read_appended(transport, look)
    if stays:
        stays.note(folder, sum(map(len, news.values())))
    return news


def look_at(
    folder: str, globs: Sequence[str], offsets: Mapping[str, int | None], limit_bytes: int
) -> Look:
    """Return what `read_appended` takes as one look."""
    return Look(folder, _globs(globs), offsets, limit_bytes)


def _read_appended(transport: Transport, look: Look) -> dict[str, bytes]:
    mark = _mark()
    script = _appended_script(look, mark)
    end = _checked(transport, transport.run(script, timeout_s=_TIMEOUT_S))
    answer = unpacked(end.stdout)
    if end.stdout[:1] == b"z" and not answer:
        raise _damaged(transport)
    news: dict[str, bytes] = {}
    for frame in _frames(transport, answer, mark):
        name, separator, content = frame.partition(b"\0")
        if not separator:
            raise _damaged(transport)
        if content:
            news[name.decode("utf-8", "surrogateescape")] = content
    return news


def read_appended_of_many(transport: Transport, looks: Sequence[Look]) -> list[dict[str, bytes]]:
    """Return what `read_appended` returns, for each look; in one call where a shell stays.

    Raises:
        TransferError: a file can't be read.
    """
    if isinstance(transport, Resident) and (found := transport.read_appended(looks)) is not None:
        return found
    return [_read_appended(transport, look) for look in looks]


_WITH_NEWS = r"""
    !listed && $0 == "" { listed = 1; next }
    !listed { offset = $1; sub(/^[^ ]* /, ""); offsets[$0] = offset; next }
    {
        size = $1; sub(/^[0-9]* /, "")
        offset = $0 in offsets ? offsets[$0] : "0" # a number beyond 2^31 would be printed rounded
        if (offset != "-" && size + 0 > offset + 0) {
            found[++count] = offset " " $0
            total += size - offset
        }
    }
    END {
        print (total > @SMALL@ ? "z" : "p")
        for (i = 1; i <= count; i++) print found[i]
    }""".replace("@SMALL@", str(SMALL_BYTES))
"""An awk program: from the offsets, an empty line and the sizes to `z`, where the news are worth
compressing, or `p`, and then a line for each file with news."""


def _appended_script(look: Look, mark: str) -> str:
    """Return a script whose time grows with the number of files and not with its square."""
    folder, patterns, limit_bytes = look.folder, look.patterns, look.limit_bytes
    known = [(p, "-" if n is None else str(int(n))) for p, n in look.offsets.items() if n != 0]
    table = "\n".join(f"{n} {p}" for p, n in known if "\n" not in p)
    odd = "\n".join(f"            {shlex.quote(p)}) o={n};;" for p, n in known if "\n" in p)
    return f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(folder)} 2>/dev/null || exit 0
newline='
'
part() {{ # offset name
    if [ "$1" = 0 ]; then head -c {int(limit_bytes)} <"$2"
    else tail -c +$(($1 + 1)) <"$2" | head -c {int(limit_bytes)}
    fi
}}
emit() {{
    printf '%s\\0' "$2"
    part "$@"
    printf '%s' '{mark}'
}}
parts() {{
while IFS= read -r line; do
    emit "${{line%% *}}" "${{line#* }}"
done
for f in {patterns}; do
    case "$f" in *"$newline"*)
        case "$f" in
{odd}
            *) o=0;;
        esac
        [ ! -f "$f" ] || [ "$o" = - ] || [ $(wc -c <"$f") -le "$o" ] || emit "$o" "$f";;
    esac
done
}}
{{
    cat <<'{mark}'
{table}

{mark}
{_sizes_script(patterns)}}} | awk '
{_WITH_NEWS}' | {{
    read -r how
    if [ "$how" = z ] && command -v gzip >/dev/null 2>&1; then printf z; parts | gzip -c
    else printf p; parts
    fi
}}
exit 0"""


def unpacked(answer: bytes) -> bytes:
    """Return what a script wrote behind `z`, compressed, or behind `p`; b"" if it was damaged."""
    if answer[:1] != b"z":
        return answer[1:]
    try:
        return zlib.decompress(answer[1:], wbits=31)
    except zlib.error:
        return b""


def sizes_script(globs: Sequence[str]) -> str:
    """Return shell commands that print the size and the name of each matching file, one a line.

    They take linear time and leave out names that hold a newline.
    """
    return _sizes_script(_globs(globs))


def _sizes_script(patterns: str) -> str:
    return f"""\
newline='
'
sizes() {{ # All from one process. The last line is the total.
    [ $# = 0 ] || wc -c -- /dev/null "$@" | sed -e '$d' -e 's/^ *//' -e '/^0 .dev.null$/d'
}}
set --
for f in {patterns}; do
    [ -f "$f" ] || continue
    case "$f" in *"$newline"*) continue;; esac
    set -- "$@" "$f"
    [ $# -lt {_NAMES_AT_ONCE} ] || {{ sizes "$@"; set --; }}
done
sizes "$@"
"""


def write_file(transport: Transport, path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file whole: a reader sees the old content or the new. Creates its folder.

    Raises:
        TransferError
    """
    folder, _, name = path.rpartition("/")
    folder = folder or ("/" if path.startswith("/") else ".")
    temporary = f".dlctl-write.{secrets.token_hex(8)}"
    script = f"""\
umask 077
mkdir -p -- {shlex.quote(folder)} && cd -- {shlex.quote(folder)} || exit {_NO_FOLDER}
trap 'rm -f -- {temporary}' EXIT
trap 'exit 129' HUP; trap 'exit 143' TERM
cat >{temporary} || exit 1
# A connection that was lost looks like the end of the input.
[ $(wc -c <{temporary}) -eq {len(content)} ] || {{ echo 'the content was cut short' >&2; exit 1; }}
chmod {mode:o} {temporary} && mv -f -- {temporary} {shlex.quote(name)}"""
    end = transport.run(script, stdin=content, timeout_s=_TIMEOUT_S)
    if end.exit_code:
        raise explained(transport, folder, end)


def _mark() -> str:
    return f"<{secrets.token_hex(16)}>"


def _frames(transport: Transport, answer: bytes, mark: str) -> list[bytes]:
    frames = answer.split(mark.encode())
    if frames.pop():
        raise _damaged(transport)
    return frames


def _damaged(transport: Transport) -> TransferError:
    return TransferError(f"{transport.name}: the answer was cut short", hint="Try again.")


def _checked(transport: Transport, end: Completed) -> Completed:
    if end.exit_code:
        raise TransferError(
            f"{transport.name}: can't read (exit code {end.exit_code}): {end.last_error_line}",
            hint="Check the permissions there.",
        )
    return end


def _globs(patterns: Sequence[str]) -> str:
    """Quote patterns, except for their wildcards."""
    words = (re.split(r"([*?]|\[[^]/']+\])", pattern) for pattern in patterns)
    return " ".join(
        "".join(p if i % 2 else shlex.quote(p) if p else "" for i, p in enumerate(parts))
        for parts in words
    )
