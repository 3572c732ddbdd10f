"""The folders below a site's root: whose they are, how they get bytes, whether those are whole.

Nobody but the user may be able to write to the root or to a folder below it: another user could
put code there that runs as the victim. So could any user who may rename the root because a folder
above it is open to all. What was sent can be purged or changed: its index tells.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Callable, Iterable, Sequence

from dlctl.contract import DIGEST_LENGTH, FOLDERS, SENT_INDEX
from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import RemoteCommandError, TransferError, TransportError
from dlctl.files.listing import IDLE_TIMEOUT_S
from dlctl.package_data import data_path
from dlctl.transport.base import Completed, Transport

NO_FOLDER, NO_UNPACK, NO_MATCH, NO_RENAME = 71, 72, 73, 74
"""Exit codes of scripts that store what they are sent, one for each step."""
_BYTES_PER_S = 20e6
"""What the slowest shared file system hashes in a second."""
UNSAFE = 76
"""Exit code of a script whose `guard` refuses a folder."""
_OPEN = "can be written by other users"
_REPLACEABLE = "lets other users replace the folders in it"

_WHOLE = rf"""
sha256() {{ sha256sum 2>/dev/null || shasum -a 256 2>/dev/null; }}
files() {{ # of a sent folder, without the index and what Python and NFS leave there
    find . -type f ! -name {SENT_INDEX} ! -name '.nfs*' ! -path '*/__pycache__/*' \
        ! -path '*\\*' ! -name '*
*' "$@"
}}
listed() {{ files -exec sh -c 'stat -c "%s %n" -- "$@" 2>/dev/null || stat -f "%z %N" -- "$@"' \
    sh {{}} + | sort; }}
indexed() {{ # names with a backslash are escaped: they are checked on the node
    grep -v '\\' {SENT_INDEX} | sed -n 's|^[0-9a-f]* \([0-9]*\) [fx] \(.*\)|\1 ./\2|p' | sort
}}
whole() ( # a folder below the root: by its index, the sizes and the times
    cd -- "$1" 2>/dev/null && [ -f {SENT_INDEX} ] || exit 1
    # A site without a program for sums leaves this to the node.
    sum=$(sha256 <{SENT_INDEX}); sum=${{sum%% *}}
    case $sum in '' | "${{1##*/}}"*) ;; *) exit 1 ;; esac
    [ -z "$(files -newer {SENT_INDEX} | head -n 1)" ] || exit 1
    [ "$(listed)" = "$(indexed)" ]
)"""


def guard(root: str, targets: Sequence[str] = ()) -> str:
    """Return the lines of a POSIX script that end it unless all folders are the user's alone.

    Args:
        root: Absolute, or relative to the home directory; folders that do not exist are fine.
        targets: Folders below `root` beside those of dlctl itself.
    """
    folders = " ".join(
        shlex.quote(path) for path in (root, *(f"{root}/{n}" for n in (*FOLDERS, *targets)))
    )
    return f"""\
{_own_folders()}
theirs=$(folders_not_own {folders})
[ -z "$theirs" ] || {{ printf '%s\\n' "$theirs" >&2; exit {UNSAFE}; }}"""


def begin_in_root(root: str, umask: int) -> str:
    """Return the first lines of a script that works in a site's root, which is made if need be."""
    return f"""\
LC_ALL=C; export LC_ALL
umask {umask:03o}
mkdir -p -- {shlex.quote(root)} || exit {NO_FOLDER}
{guard(root)}
cd -- {shlex.quote(root)} || exit {NO_FOLDER}"""


def _own_folders() -> str:
    return (data_path("templates") / "own_folders.sh").read_text(encoding="utf-8")


def doubtful_above(transport: Transport, root: str) -> list[str]:
    """Return a few words on each folder above a site's root in which others can rename folders.

    They are the owner and the group of a project's folder: people whom the user may trust, so
    `guard` does not refuse them.
    """
    script = f"""\
LC_ALL=C; export LC_ALL
{_own_folders()}
private=
case $others_write in *0020*) ;; *) private="! -group $(id -g)" ;; esac
doubtful() {{ # folder
    [ -z "$(find -H "$1" -prune -perm -0020 ! -perm -0002 ! -perm -1000 $private -print)" ] ||
        echo "$1 can be written by its group"
    [ -z "$(find -H "$1" -prune ! -user "$my_uid" ! -user 0 ! -user 65534 -print)" ] ||
        echo "$1 belongs to another user"
}}
each_above_root doubtful {shlex.quote(root)}"""
    return list(dict.fromkeys(transport.run(script).lines))


def refusal(name: str, end: Completed) -> RemoteCommandError:
    """Return the error of a script that ended with `UNSAFE`."""
    lines = [line.split("\t") for line in lines_of(end.error_text) if line.count("\t") == 1]
    faults = ", ".join(f"{folder} {why}" for folder, why in lines)
    mine = " ".join(shlex.quote(folder) for folder, why in lines if why == _OPEN)
    chmod = f"chmod go-w {mine}, if nobody else has written there; else " if mine else ""
    below = any(why == _REPLACEABLE for _, why in lines)
    where = "that no other user can rename, such as one in your home" if below else "of your own"
    return RemoteCommandError(
        f"{name}: {faults}: other users could make your jobs run their code, so nothing was sent",
        hint=f"{chmod}set `root` in the site's file to a new folder {where}",
    )


def all_damaged(transport: Transport, root: str) -> list[str]:
    """Return what is below a site's root that is no longer what was sent.

    Raises:
        RemoteCommandError: the root can't be read, or is not the user's alone.
    """
    script = f"""\
cd -- {shlex.quote(root)} 2>/dev/null || exit 0
for d in runtime/* store/*; do
    # A folder of code, which has a digest in its name, may have lost its index.
    if [ -f "$d/{SENT_INDEX}" ] || [ "${{d%%/*}}-${{#d}}" = store-{6 + DIGEST_LENGTH} ]; then
        printf '%s\\n' "$d"
    fi
done
exit 0"""
    end = transport.run(script)
    if end.exit_code:
        raise _unreadable(transport, end)
    return sorted(damaged(transport, root, end.text.split("\n")[:-1], asks=False))


def damaged(
    transport: Transport, root: str, targets: Sequence[str], *, asks: bool = True
) -> set[str]:
    """Return the targets below `root` that are missing or no longer what was sent.

    Args:
        asks: Whether a submission is about to use them: `dlctl prune` leaves what was asked for
            in the last day, so the folder's time is renewed before the look.

    Raises:
        RemoteCommandError: the root can't be read, or is not the user's alone.
    """
    words = " ".join(shlex.quote(target) for target in targets)
    renew = 'touch -c -- "$d" 2>/dev/null' if asks else ":"
    script = f"""\
LC_ALL=C; export LC_ALL
{guard(root, targets)}{_WHOLE}
[ -d {shlex.quote(root)} ] || {{ printf '%s\\n' {words}; exit 0; }}
cd -- {shlex.quote(root)} || exit 1
for d in {words}; do
    {renew}
    case $d in
    secrets/*) [ -d "$d" ] ;; # has no index
    *) whole "$d" ;;
    esac || printf '%s\\n' "$d"
done
exit 0"""
    end = transport.run(script)
    if end.exit_code == UNSAFE:
        raise refusal(transport.name, end)
    if end.exit_code:
        raise _unreadable(transport, end)
    return set(end.text.split("\n")) - {""}


def _unreadable(transport: Transport, end: Completed) -> RemoteCommandError:
    return RemoteCommandError(
        f"{transport.name}: can't read the root folder (exit code {end.exit_code}): "
        f"{end.last_error_line}",
        hint="try again; `dlctl doctor` examines the site",
    )


def feed(
    transport: Transport, script: str, chunks: Iterable[bytes], size_bytes: int,
    on_sent: Callable[[int], None],
) -> Completed:  # fmt: skip
    """Start a script, write to its standard input, and return how it ended.

    Args:
        script: Reads all that it gets, unless it fails.
        chunks: What it gets.
        size_bytes: How much the script hashes once it has got all.
        on_sent: Called with the size of each chunk.

    Raises:
        TransportError
    """
    hashing_s = IDLE_TIMEOUT_S + size_bytes / _BYTES_PER_S
    rest = iter(chunks)
    first, second = next(rest, b""), next(rest, None)
    if second is None:  # one round trip less
        end = transport.run(script, stdin=first, timeout_s=hashing_s)
        on_sent(len(first))
        return end
    process = transport.start(script, idle_timeout_s=IDLE_TIMEOUT_S)
    try:
        for chunk in itertools.chain((first, second), rest):
            process.stdin.write(chunk)
            on_sent(len(chunk))
    except BrokenPipeError:
        pass  # the script ended early: its exit code says why
    except BaseException:
        process.kill()
        raise
    return process.wait(hashing_s)


def explained(transport: Transport, root: str, end: Completed) -> TransportError:
    """Return the error of a script that could not write or remove what it should."""
    name, where = transport.name, shlex.quote(root)
    if end.exit_code == UNSAFE:
        return refusal(name, end)
    text = end.error_text
    last = last_telling_line(text) or f"exit code {end.exit_code}"
    hint = f"Check the space, the inodes and the permissions there: df -h {where}; df -i {where}"
    if "No space left" in text:
        what, hint = "the disk is full", f"Make room there: {_see_space(transport, root)}"
        if "df -i" in hint:
            what = "the file system has no inode left for another file"
            hint = hint.replace("Make room", "Remove files", 1)
    elif "quota" in text.lower():
        what = "your quota is used up"
        hint = f"Free space, or files, there: {_see_quota(transport)}du -sh {where}"
    elif "Permission denied" in text or "Read-only" in text:
        what, hint = (
            "you have no permission to write there",
            "Choose another root folder in the site's file.",
        )
    elif end.exit_code == NO_MATCH:
        what, hint = (
            "what arrived is not what was sent",
            "Try again; if it happens again, check the disk there.",
        )
    else:
        what = "it can't be changed"
    return TransferError(f"{name}: {what} ({root}): {last}", hint=hint)


def see_space_lines() -> str:
    """Return the shell function `see_space`."""
    return (data_path("templates") / "see_space.sh").read_text(encoding="utf-8")


def _see_space(transport: Transport, root: str) -> str:
    """Return the command that shows at a site what has run out: bytes, or inodes."""
    answer = _answer(transport, f"{see_space_lines()}see_space {shlex.quote(root)}")
    option, _, folder = answer.partition(" ")
    if not folder:
        return f"df -h {shlex.quote(root)}; df -i {shlex.quote(root)}"
    return f"df {option} {shlex.quote(folder)}"


def _see_quota(transport: Transport) -> str:
    """Return the command that shows a quota, where the site has it."""
    return "quota -s; " if _answer(transport, "command -v quota") else ""


def _answer(transport: Transport, script: str) -> str:
    """Return the line that a script prints; empty: the site does not answer."""
    with contextlib.suppress(TransportError):
        return transport.run(script).text.rstrip("\n")
    return ""


def last_telling_line(stderr: str) -> str:
    """Return the last informative line: tar ends with lines that say nothing."""
    lines = [line.strip() for line in lines_of(stderr) if line.strip()]
    noise = ("Exiting with failure", "extended header keyword")
    telling = [line for line in lines if not any(words in line for words in noise)]
    return (telling or lines or [""])[-1]
