"""FfDL's file of records, `evaluation-metrics.txt`: a JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dlctl.contract.metrics import SUBID, MetricsLine
from learner.collect.parsers.record import Draft, Kind, LineParser, kind_of

EMETRICS_FILE = "evaluation-metrics.txt"
_EXCERPT = 60
"""Characters of a line that are told."""


class EmetricsParser(LineParser):
    """Reads the records of one file.

    Args:
        complain: takes a sentence about a line that is no record.
        subid: which of several runs the file belongs to, unless a record says so.
    """

    def __init__(self, complain: Callable[[str], None], subid: str = "") -> None:
        self._complain = complain
        self._subid = subid
        self._left_out = False

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records in the lines; a line that is none is left out, and the first told."""
        found = (self._record(line) for line in text.split("\n") if line.strip())
        return [line for line in found if line is not None]

    def _record(self, text: str) -> MetricsLine | None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self._leave_out(text)
            return None
        meta = _object(found.get("meta"))
        label = found.get("grouplabel")
        draft = Draft(label if isinstance(label, str) else "")
        draft.when(meta.get("time"))
        subid = meta.get(SUBID)
        draft.text(SUBID, str(subid) if subid not in (None, "") else self._subid)
        for name, item in _object(found.get("etimes")).items():
            draft.axis(name, *_typed(item))
        for name, item in _object(found.get("values")).items():
            draft.value(name, *_typed(item))
        return draft.line()

    def _leave_out(self, text: str) -> None:
        if not self._left_out:
            self._left_out = True
            line = text.strip()[:_EXCERPT]
            self._complain(
                f"{line!r} in {EMETRICS_FILE} is no JSON object: such lines are left out."
            )


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _typed(item: object) -> tuple[Kind, object]:
    """Return type and value of `{"type": 3, "value": "0.6"}`, or of a bare value."""
    if isinstance(item, dict):
        return kind_of(item.get("type")) or Kind.STRING, _plain(item.get("value"))
    return (Kind.FLOAT if isinstance(item, (int, float)) else Kind.STRING), _plain(item)


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, (dict, list)) else value
