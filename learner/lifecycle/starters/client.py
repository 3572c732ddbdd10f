"""The next dlctl command that looks at the training starts its next attempt."""

from __future__ import annotations

from dlctl.contract import StarterKind
from learner.lifecycle.starters.base import Situation


class Client:
    """Leaves the attempt to `dlctl.lifecycle.watch`."""

    kind = StarterKind.CLIENT
    runs_here = False
    begins = False

    def objection(self, situation: Situation) -> str:  # noqa: ARG002
        """Return nothing: this is always open."""
        return ""

    def start(self, situation: Situation) -> str:  # noqa: ARG002
        """Do nothing: the verdict's action is all that the login side needs."""
        return "The next dlctl command that looks at the training starts it."
