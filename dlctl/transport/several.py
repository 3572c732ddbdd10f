"""Run several scripts in one call of a site."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from dlctl.transport.base import Completed, Transport

_MOST_ERROR_BYTES = 2000


def run_each(
    transport: Transport, scripts: Sequence[str], timeout_s: float = 90.0, before: str = ":"
) -> list[Completed]:
    """Run scripts one after another, each in a shell of its own; return how each has ended.

    Args:
        timeout_s: For all of them together.
        before: What the first shell runs; its functions and variables are those of all.

    Raises:
        TransportError: nobody knows which of them have run.
    """
    if not scripts:
        return []
    token = secrets.token_hex(8)
    whole = "\n".join(
        ["exec 3>&1", before, *(framed(n, each, token) for n, each in enumerate(scripts))]
    )
    end = transport.run(f"{whole}\nexit 0", timeout_s=timeout_s)
    found = dict(answers(io.BytesIO(end.stdout), token.encode()))
    silent = Completed(end.exit_code or 1, b"", end.stderr)
    return [found.get(n, silent) for n in range(len(scripts))]


def framed(number: int, script: str, token: str) -> str:
    """Return the lines that run a script and print its answer for `answers` to read.

    Its standard output passes through as it comes. No file holds what is printed: the disk may be
    full. The standard output of the whole has to be open as file 3.
    """
    return f"""\
one() {{
{script}
}}
printf '%s begin %d\\n' {token} {number} 2>/dev/null
err=$(one 2>&1 >&3 3>&- </dev/null)
code=$? bytes=0
[ ${{#err}} -le {_MOST_ERROR_BYTES} ] || err=$(printf '%s' "$err" | tail -c {_MOST_ERROR_BYTES})
[ -z "$err" ] || bytes=$(LC_ALL=C; echo ${{#err}})
printf '\\n%s end %d %d\\n%s' {token} "$code" "$bytes" "$err" 2>/dev/null"""


def answers(stream: BinaryIO, token: bytes) -> Iterator[tuple[int, Completed]]:
    """Yield each script's number, and how it has ended, as soon as that is known."""
    begins, ends = token + b" begin ", token + b" end "
    number, printed = -1, bytearray()
    while line := stream.readline():
        if line.startswith(begins):
            number, printed = int(line.split()[2]), bytearray()
        elif line.startswith(ends) and number >= 0:
            code, err_bytes = map(int, line.split()[2:])
            err = stream.read(err_bytes)
            if len(err) == err_bytes:
                yield number, Completed(code, bytes(printed).removesuffix(b"\n"), err)
        else:
            printed += line
