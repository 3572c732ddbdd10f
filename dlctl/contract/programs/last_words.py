"""Explain the end of a job without a verdict, from the last lines of its output. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from dlctl.contract.programs.verdict_rules import Place, first_match
from dlctl.contract.states import VerdictKind

LINES = 20
"""How many lines of a job's output are read."""

_MEMORY = re.compile(r"exceeded (?:job )?memory limit \((\d+) > (\d+)\)")


class Explanation(NamedTuple):
    """Why a job ended, and what to do next."""

    reason: str
    hint: str
    kind: VerdictKind


def explain(lines: list[str], training_id: str, site: str) -> Explanation | None:
    """Return why a job ended, or None if the last lines of its output don't say it."""
    found = first_match(Place.JOB, lines)
    if found is None:
        return None
    rule, line = found
    reason = rule.sentence[:1].lower() + rule.sentence[1:] or line.strip()
    if memory := _MEMORY.search(line):
        used, limit = (int(text) // 2**20 for text in memory.groups())
        reason += f" ({used} MiB; asked for {limit} MiB)"
    return Explanation(reason, rule.hint.format(id=training_id, site=site), rule.kind)
