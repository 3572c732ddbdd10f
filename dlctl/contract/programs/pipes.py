"""Tell from a command, and from the shell scripts that it names, where a failure gets lost. Pure.

The exit code of a pipeline is that of its last program: `python train.py | tee log` never fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dlctl.contract.programs.lone_program import programs_of

_SUBSTITUTED = re.compile(r"\$\([^()]*\)|`[^`]*`|^\s*#.*$", re.MULTILINE)
_PROGRAM = r"(?:\b(?:python[\d.]*|torchrun|accelerate|deepspeed|bash|sh)\b|\.py\b|\.sh\b|\./)"
_FILTERED = re.compile(
    rf"{_PROGRAM}[^\n|;]*(?<!\|)\|(?!\|)&?\s*(?:/\S*/)?(?P<filter>tee|ts|cat|grep|sed|awk|tail|head)\b"
    r"(?! -q\b)(?![^\n;]*(?:&&|\|\|))"
)
_COUNTED = re.compile(r"\bpipefail\b|\bPIPESTATUS\b")


def warn_if_piped(command: str | None, code: Path) -> str:
    """Return that the exit code of a program in a pipeline is lost, in one sentence, or "".

    Args:
        code: The folder with the user's files.
    """
    for where, text in _texts(command or "", code):
        found = _FILTERED.search(_SUBSTITUTED.sub("", text))
        if found is None or _COUNTED.search(text):
            continue
        if where:
            fix = f"begin {where} with `set -o pipefail` and run it with bash"
        else:
            fix = "use `bash -o pipefail -c '…'`, or leave the pipe out: dlctl keeps all output"
        return (
            f"{where or 'framework.command'} pipes the program into {found['filter']}, whose exit "
            f"code counts, so that a failure would pass for a success: {fix}"
        )
    return ""


def _texts(command: str, code: Path) -> Iterator[tuple[str, str]]:
    yield "", command
    for path in programs_of(command, code):
        if path.suffix in (".sh", ".bash"):
            try:
                yield path.name, path.read_text(errors="replace")[: 1 << 20]
            except OSError:
                continue
