"""The search's error for users."""

from __future__ import annotations

from dlctl.contract.ground.hinted import HintedError


class SearchError(HintedError):
    """An error with one sentence that says what was seen and where, and a hint what to do next."""
