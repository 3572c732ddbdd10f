"""The one error of the search whose text is written for users."""

from __future__ import annotations


class SearchError(Exception):
    """An error with one sentence that says what was seen and where, and a hint what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  HINT: {self.hint}" if self.hint else self.message
