"""Tell the lines of the trials' log that count, if two models have written to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BEGIN = "begin"
"""The event with which a model begins: from there on only its own lines count."""


class Newest:
    """Follows the lines of the log, and tells which of them are the newest model's.

    A model that hung, or was cut off, may still write when another one goes on for it. That one has
    read the log up to its own first line, so what others write behind it counts for nobody.
    """

    def __init__(self) -> None:
        self._model = ""

    def counts(self, event: Mapping[str, Any]) -> bool:
        """Return whether the next line is one of the newest model's events."""
        if event["event"] == BEGIN:
            self._model = event["model"]
            return False
        return bool(event.get("model", "") == self._model)
