"""What the parameter server says when it can't go on."""

from __future__ import annotations


class ServerError(Exception):
    """One sentence: what was seen, and where; and what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  HINT: {self.hint}" if self.hint else self.message
