"""The base of each package's errors whose text is written for users."""

from __future__ import annotations


class HintedError(Exception):
    """An error with one sentence that says what was seen and where, and a hint what to do next."""

    _HEAD = "HINT: "

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self._HEAD}{self.hint}" if self.hint else self.message
