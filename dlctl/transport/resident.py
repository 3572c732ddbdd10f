"""A shell that stays at a site and reads small news with its built-ins: a look starts no process.

It also runs scripts that ask for something, each of which would need a session otherwise, with a
login shell. It is bash, version 4.2 or newer: other shells can't read bytes, or hold more than nine
files open. It waits for requests on its standard input, so it ends when the connection does,
however that ends. Where a site has no such shell, or grants no second session, all questions get
None, and the caller looks as it does without one.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dlctl.errors import ConnectError, TransportError, TransportTimeout
from dlctl.transport.base import Completed, Process, Transport, late

_FEW_BYTES = 4096
"""So much of a file's news the built-ins read, one byte at a time; dd brings the rest."""
_MUCH_BYTES = 64 * 1024
"""After so much news the next look is another one's, who compresses what comes."""
_ANSWER_S = 60.0
_SESSION_S = 5.0
"""The time to wait for a second session."""
_FORGET_S = 30.0
"""After so long without a look the files of a folder are closed: an open one may hinder `rm`."""
_MOST_FAILURES = 3
"""So often in a row the shell may vanish, as where a site ends processes of log-in nodes."""

_START = r"""
command -v bash >/dev/null 2>&1 || exit 0
exec bash --noprofile --norc -p -c ' # -p: it reads no $BASH_ENV, which its children may need
[[ ${BASH_VERSINFO[0]}${BASH_VERSINFO[1]} -ge 42 ]] || exit 0
while IFS= read -r line; do
    case $line in
        .) kept=$request request=; eval "$kept";;
        =) eval "$kept";;
        *) request+=$line$'"'\\n'"';;
    esac
done'"""
_PROGRAM = r"""
LC_ALL=C home=$PWD mark=@MARK@
declare -A file from
ulimit -S -n hard 2>/dev/null
leave() { # key: close the file
    local number=${file[$1]-}
    [[ -z $number ]] || exec {number}<&-
    file[$1]= from[$1]=
}
news() { # folder limit name: print what has come behind the place that was read up to
    local key=$1/$3 number text size=0 told=
    [[ ${from[$key]-} != - && -f $3 ]] || return
    number=${file[$key]-}
    if [[ -z $number ]]; then
        { exec {number}<"$3"; } 2>/dev/null || { printf '!%s' "$mark"; return; }
        [[ -z ${from[$key]-} ]] || dd bs=1 skip="${from[$key]}" count=0 <&"$number" 2>/dev/null
        file[$key]=$number
    else
        { : <"$3"; } 2>/dev/null # NFS tells a new size at an open
        [[ $3 -ef /dev/fd/$number ]] || { printf '!%s' "$mark"; return; } # it was replaced
    fi
    while [[ $size -lt @FEW@ ]]; do
        if IFS= read -r -d '' -n $((@FEW@ - size)) text <&"$number"; then
            [[ ${#text} -lt $((@FEW@ - size)) ]] && set -- "$1" "$2" "$3" '\0'
        else set -- "$1" "$2" "$3" end
        fi
        [[ -z $text && ${4-} = end ]] && break
        [[ -n $told ]] || printf '%s\0' "$3"
        told=1 size=$((size + ${#text}))
        printf '%s' "$text"
        [[ ${4-} = end ]] && break
        [[ -z ${4-} ]] || { printf '\0'; size=$((size + 1)); }
        set -- "$1" "$2" "$3"
    done
    [[ ${4-} = end || $2 -le $size ]] || dd bs=$(($2 - size)) count=1 <&"$number" 2>/dev/null
    [[ -z $told ]] || printf '%s' "$mark"
}
texts() { # paths
    local path above lines
    for path; do
        if [[ -f $path ]]; then
            if { mapfile -t lines <"$path"; } 2>/dev/null; then
                printf y
                [[ ${#lines[@]} = 0 ]] || printf '%s\n' "${lines[@]}"
            else printf '?'
            fi
        else
            above=${path%/*}
            while [[ -n $above && ! -e $above ]]; do above=${above%/*}; done
            if [[ -x ${above:-/} ]]; then printf n; else printf '?'; fi
        fi
        printf '%s' "$mark"
    done
}
date() { if [[ $* = +%s ]]; then printf '%(%s)T\n' -1; else command date "$@"; fi; }
run() { # script
    local script=$1 code said
    set --
    { said=$(exec </dev/null; eval "$script" 2>&1 >&4 4>&-); code=$?; } 4>&1
    printf '%s%s%s%s%s' "$mark" "$code" "$mark" "$said" "$mark"
}
"""


@dataclass(frozen=True)
class Look:
    """The files to read of a folder: the arguments of `dlctl.files.small_files.read_appended`."""

    folder: str
    patterns: str
    """For the shell: all is quoted but the wildcards."""
    offsets: Mapping[str, int | None]
    limit_bytes: int


class Resident:
    """A transport with a shell that stays, for a client that looks again and again.

    Not for several threads at once.

    Args:
        transport: To the site.
        prologue: What the shell evaluates at its beginning.
    """

    def __init__(self, transport: Transport, prologue: str = "") -> None:
        self._transport, self._prologue = transport, prologue
        self._process: Process | None = None
        self._mark, self._kept = b"", ""
        self._failures = 0
        self._at: dict[tuple[str, str], int | None] = {}
        """The shell's offset in each file, by folder and name; 0 if it is not here."""
        self._looked_at: dict[str, float] = {}
        self._quiet: set[str] = set()

    @property
    def name(self) -> str:
        """The transport's, which may know more of its target once it is connected."""
        return self._transport.name

    def start(self, script: str, *, idle_timeout_s: float = 120.0,
              on_stderr: Callable[[bytes], None] | None = None) -> Process:  # fmt: skip
        """Start a script; see `Transport.start`."""
        return self._transport.start(script, idle_timeout_s=idle_timeout_s, on_stderr=on_stderr)

    def run(self, script: str, *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 60.0,
            on_stderr: Callable[[bytes], None] | None = None) -> Completed:  # fmt: skip
        """Run a script to its end; see `Transport.run`."""
        return self._transport.run(script, stdin=stdin, timeout_s=timeout_s, on_stderr=on_stderr)

    def close(self) -> None:
        """End the shell and the connection; idempotent."""
        self.leave()
        self._transport.close()

    @property
    def is_there(self) -> bool:
        """Return whether the shell runs."""
        return self._process is not None

    def is_quiet(self, folder: str) -> bool:
        """Return whether the last look at a folder brought little."""
        return folder in self._quiet

    def note(self, folder: str, size_bytes: int) -> None:
        """Note how much a look at a folder has brought."""
        (self._quiet.add if size_bytes < _MUCH_BYTES else self._quiet.discard)(folder)

    def ask(self, script: str, timeout_s: float) -> Completed | None:
        """Run a script that changes nothing, as it may run twice; None: run it without this shell.

        Raises:
            TransportTimeout: it was killed.
        """
        if self._process is None or {".", "="} & {*script.split("\n")}:
            return None
        frames = self._ask(f"run {shlex.quote(script)}", timeout_s)
        if frames is None or len(frames) != 3 or not frames[1].isdigit():
            return None
        return Completed(int(frames[1]), frames[0], frames[2])

    def read_texts(self, paths: Sequence[str]) -> tuple[float, dict[str, bytes | None]] | None:
        """Return the site's clock (Unix seconds) and each text; the last line ends with a newline.

        A text that can't be told from a missing one is left out. None: there is no shell.
        """
        if any("\n" in path for path in paths):
            return None
        words = " ".join(map(_word, paths))
        frames = self._ask(f"printf '%(%s)T%s' -1 \"$mark\"\ntexts {words}")
        if frames is None or len(frames) != len(paths) + 1:
            return None
        return float(frames[0]), {
            path: frame[1:] if frame[:1] == b"y" else None
            for path, frame in zip(paths, frames[1:], strict=True) if frame[:1] in (b"y", b"n")
        }  # fmt: skip

    def read_appended(self, looks: Sequence[Look]) -> list[dict[str, bytes]] | None:
        """Return what was appended, for each look; None: look without this shell."""
        now = time.monotonic()
        self._looked_at |= {look.folder: now for look in looks}
        old = [folder for folder, at in self._looked_at.items() if now - at > _FORGET_S]
        moves = [move for folder in old for move in self._moved(Look(folder, "", {}, 0))]
        for folder in old:
            del self._looked_at[folder]
        request = [*moves, *(line for look in looks for line in self._lines(look))]
        if any("\n" in line for line in request):
            return None
        frames = self._ask("\n".join([*request, 'cd -- "$home"']))
        if frames is None:
            return None
        found: list[dict[str, bytes]] = [{}]
        for frame in frames:
            path, separator, content = frame.partition(b"\0")
            if separator:
                found[-1][path.decode("utf-8", "surrogateescape")] = content
            elif frame == b"!":  # a file can't be opened, or was replaced
                self.leave()
                return None
            else:
                found.append({})
        for look, news in zip(looks, found, strict=False):
            for name, content in news.items():
                place = (look.folder, name)
                self._at[place] = (self._at.get(place) or 0) + len(content)
            self.note(look.folder, sum(map(len, news.values())))
        return found[: len(looks)]

    def _lines(self, look: Look) -> list[str]:
        """Return the request for a look: an empty frame ends its answer."""
        key = shlex.quote(look.folder)
        return [
            *self._moved(look),
            f"cd -- {_word(look.folder)} 2>/dev/null && for f in {look.patterns}; do "
            f'news {key} {look.limit_bytes} "$f"; done',
            "printf '%s' \"$mark\"",
        ]

    def _moved(self, look: Look) -> list[str]:
        """Return what tells the shell the places that it does not stand at."""
        before = {name: at for (folder, name), at in self._at.items() if folder == look.folder}
        lines = []
        for name in [*before, *(name for name in look.offsets if name not in before)]:
            at = look.offsets.get(name, 0)
            if before.get(name, 0) == at:
                continue
            key = shlex.quote(f"{look.folder}/{name}")
            place = "-" if at is None else at or ""
            lines.append(f'k={key}; leave "$k"; from[$k]={place}')
            self._at[look.folder, name] = at
        return lines

    def _ask(self, request: str, timeout_s: float | None = None) -> list[bytes] | None:
        """Return the frames of an answer; None if there is no shell, or it has vanished.

        Args:
            timeout_s: How long the answer may take, of a shell that is there.

        Raises:
            TransportTimeout: it took longer than `timeout_s`.
        """
        if self._failures >= _MOST_FAILURES:
            return None
        deadline = time.monotonic() + (timeout_s or _ANSWER_S)
        try:
            process = self._process or self._begin()
            end = self._mark + b"."
            question = f"{request}\nprintf '%s.' \"$mark\"\n.\n"
            is_kept, self._kept = request == self._kept, request
            process.stdin.write(b"=\n" if is_kept else question.encode(errors="surrogateescape"))
            answer = bytearray()
            while not answer.endswith(end):
                process.idle_timeout_s = max(0.0, deadline - time.monotonic())
                piece = process.stdout.read1(1 << 20)  # type: ignore[attr-defined]
                if not piece:
                    raise BrokenPipeError
                answer += piece
        except (BrokenPipeError, TransportError) as error:
            self.leave()
            if timeout_s and isinstance(error, TransportTimeout):
                raise late(self.name, timeout_s) from error
            self._failures += 1
            return None
        self._failures = 0
        return bytes(answer[: -len(end)]).split(self._mark)[:-1]

    def _begin(self) -> Process:
        self._process = process = self._transport.start(_START, idle_timeout_s=_ANSWER_S)
        mark = f"<{secrets.token_hex(16)}>"
        self._mark = mark.encode()
        program = _PROGRAM.replace("@MARK@", shlex.quote(mark)).replace("@FEW@", str(_FEW_BYTES))
        process.stdin.write(f"{program}{self._prologue}\n.\n".encode())
        try:
            self._transport.run(":", timeout_s=_SESSION_S)
        except ConnectError:  # another session is not granted: other commands need this one
            self._failures = _MOST_FAILURES
            raise
        return process

    def leave(self) -> None:
        """End the shell; the connection stays. Idempotent."""
        process, self._process, self._kept = self._process, None, ""
        self._at.clear()
        self._looked_at.clear()
        if process is not None:
            with contextlib.suppress(TransportError, BrokenPipeError):
                process.wait(1.0)


def ask(transport: Transport, script: str, *, timeout_s: float = 60.0) -> Completed:
    """Run a script that changes nothing: in the shell that stays, if the transport has one.

    Raises:
        TransportError
    """
    if isinstance(transport, Resident) and (end := transport.ask(script, timeout_s)) is not None:
        return end
    return transport.run(script, timeout_s=timeout_s)


def _word(path: str) -> str:
    """Return a path as a word of the shell, whose folder is another one than at its start."""
    return shlex.quote(path) if path.startswith("/") else f'"$home"/{shlex.quote(path)}'
