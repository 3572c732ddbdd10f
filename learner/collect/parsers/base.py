"""The interface of a parser of lines."""

from __future__ import annotations

from typing import Any, Protocol

from dlctl.contract.metrics import MetricsLine


class LineParser(Protocol):
    """Turns the lines of one file into lines of metrics."""

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines, each of which ends with a newline."""

    def finish(self) -> list[MetricsLine]:
        """Return the records that are left once no further line comes."""

    def memory(self) -> Any:
        """Return as JSON what the parser has to know to go on in another process."""

    def remember(self, memory: Any) -> None:
        """Go on with what another process's parser knew; nonsense is ignored."""
