"""Errors of the cursor and the parameter server."""

from __future__ import annotations


class PsrvError(Exception):
    """An error with one sentence that says what was seen and where, and a hint what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  HINT: {self.hint}" if self.hint else self.message


class ServerError(PsrvError):
    """The parameter server can't do what it was asked to do."""


class LateError(ServerError):
    """A halt leaves no time to wait for other learners or servers."""
