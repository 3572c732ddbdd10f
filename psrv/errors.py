"""Errors of the cursor and the parameter server."""

from __future__ import annotations

from dlctl.contract.ground.hinted import HintedError


class PsrvError(HintedError):
    """An error with one sentence that says what was seen and where, and a hint what to do next."""


class ServerError(PsrvError):
    """The parameter server can't do what it was asked to do."""


class LateError(ServerError):
    """A halt leaves no time to wait for other learners or servers."""
