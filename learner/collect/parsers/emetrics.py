"""FfDL's file of records, `evaluation-metrics.txt`: a JSON object on each line."""

from __future__ import annotations

import json
from typing import Any

from dlctl.contract.metrics import SUBID, MetricsLine
from learner.collect.parsers.record import Draft, Kind, kind_of


class EmetricsParser:
    """Reads the records of one file.

    Args:
        subid: which of several runs the file belongs to, unless a record says so.
    """

    def __init__(self, subid: str = "") -> None:
        self._subid = subid

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records in the lines; a line that is none is left out."""
        found = (self._record(line) for line in text.split("\n") if line.lstrip().startswith("{"))
        return [line for line in found if line is not None]

    def finish(self) -> list[MetricsLine]:
        """Return nothing: no record waits for a further line."""
        return []

    def memory(self) -> None:
        """Return nothing: a record is a line."""

    def remember(self, memory: Any) -> None:
        """Ignore it."""

    def _record(self, text: str) -> MetricsLine | None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
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


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _typed(item: object) -> tuple[Kind, object]:
    """Return type and value of `{"type": 3, "value": "0.6"}`, or of a bare value."""
    if isinstance(item, dict):
        return kind_of(item.get("type")) or Kind.STRING, _plain(item.get("value"))
    return (Kind.FLOAT if isinstance(item, (int, float)) else Kind.STRING), _plain(item)


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, (dict, list)) else value
