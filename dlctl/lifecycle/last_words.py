"""Explain the end of a job without a verdict, from the scheduler's lines in its output. Pure."""

from __future__ import annotations

import re

LINES = 20
"""How many lines of a job's output are read."""

_MEMORY = re.compile(r"exceeded (?:job )?memory limit \((\d+) > (\d+)\)")
_WORDS = [
    (
        re.compile(r"oom.?kill|exceeded (job )?memory limit|out of memory", re.IGNORECASE),
        "the job was killed for using more memory than it asked for",
        "continue with more: dlctl resume {id} --memory 8GiB",
    ),
    (
        re.compile(r"DUE TO NODE FAILURE"),
        "a node of the job was lost",
        "`dlctl resume {id}` continues from the newest checkpoint",
    ),
    (
        re.compile(r"DUE TO TIME LIMIT"),
        "the time limit ended the job before it could save",
        "`dlctl resume {id} --time 8h` continues from the newest checkpoint, with more time",
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "the site's file system is full, or a quota is used up",
        "free space there (`dlctl delete` removes old trainings), then `dlctl resume {id}`",
    ),
]


def explain(lines: list[str], training_id: str) -> tuple[str, str] | None:
    """Return why a job ended, from the last lines of its output, and what to do next."""
    for pattern, reason, hint in _WORDS:
        for line in reversed(lines):
            if not pattern.search(line):
                continue
            if found := _MEMORY.search(line):
                used, limit = (int(text) // 2**20 for text in found.groups())
                reason += f" ({used} MiB; asked for {limit} MiB)"
            return reason, hint.format(id=training_id)
    return None
