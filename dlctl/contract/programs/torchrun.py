"""The summary that torchrun prints when one of its processes has failed, as one line. Pure.

It is longer than what is kept of a log, and would hide the program's own error; torchrun itself
always ends with exit code 1, and names only in the summary how the process ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_ERROR = re.compile(r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError: *$")
_HEAD = "Traceback (most recent call last):"
_FIRST = "Root Cause (first observed failure):"
_FIELD = re.compile(r" +(?P<name>rank|exitcode) +: (?P<number>-?\d+)")
_LOG = re.compile(r"[WEI]\d{4} [\d:.]+ .*torch/distributed/elastic/")
_LINE = re.compile(r"torchrun: rank (\d+) failed first, (exit code|signal) (\d+)")


class FirstFailure(NamedTuple):
    """The process of torchrun that failed first."""

    rank: int
    exit_code: int | None
    signal: int | None


def summarize(lines: list[str]) -> list[str]:
    """Return a log's lines with torchrun's messages and summary as one line, if it ends with one.

    Args:
        lines: With tracebacks already shortened.
    """
    end = next((n for n in range(len(lines) - 1, -1, -1) if _ERROR.search(lines[n])), None)
    if end is None or _FIRST not in lines[end:]:
        return lines
    cause = lines[end + lines[end:].index(_FIRST) :]
    found = {field["name"]: int(field["number"]) for field in map(_FIELD.match, cause) if field}
    if found.keys() != {"rank", "exitcode"}:
        return lines
    begin = next((n for n in range(end, -1, -1) if lines[n].endswith(_HEAD)), end)
    code = found["exitcode"]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    own = [line for line in lines[:begin] if not _LOG.match(line)]
    return [*own, f"torchrun: rank {found['rank']} failed first, {how}"]


def first_failure(lines: Iterable[str]) -> FirstFailure | None:
    """Return which process failed first if the lines are `summarize`'s, or None."""
    found = [match for match in map(_LINE.fullmatch, lines) if match]
    if not found:
        return None
    rank, what, number = found[-1].groups()
    code = int(number)
    return FirstFailure(int(rank), *((code, None) if what == "exit code" else (None, code)))


def without_summary(lines: list[str]) -> list[str]:
    """Return the program's own lines."""
    return [line for line in lines if not _LINE.fullmatch(line)]
