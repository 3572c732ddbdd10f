"""A chain of links: each is tried unless one that it hangs on is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlctl.errors import DlctlError

OK, WARN, BROKEN, SKIPPED = "ok", "warn", "broken", "skipped"


@dataclass(frozen=True)
class Link:
    """One link of the chain, and how it was found."""

    name: str
    state: str
    """`ok`, `warn`, `broken` or `skipped`."""
    evidence: str
    """The observation behind the state."""
    fix: str = ""
    """The remedy, if the link is not ok."""
    site: str = ""
    """The site; empty: this machine."""


class Chain:
    """The links of this machine, or of one site, in order.

    Args:
        site: Its name; empty for this machine.
        tell: Called with each link as soon as it is known.
    """

    def __init__(self, site: str = "", tell: Callable[[Link], None] = lambda _: None) -> None:
        self.site, self._tell = site, tell
        self.links: list[Link] = []

    def state(self, name: str) -> str:
        """Return the state of a link; empty if it was not tried."""
        return next((link.state for link in self.links if link.name == name), "")

    def add(self, name: str, state: str, evidence: str, fix: str = "") -> None:
        """Add a link that was tried; what is ok needs no `fix`."""
        fix = "" if state == OK else fix
        link = Link(name, state, " ".join(evidence.split()), fix, self.site)
        self.links.append(link)
        self._tell(link)

    def lacks(self, needs: Sequence[str]) -> str:
        """Return why links that hang on these can't be tried; empty if they can."""
        for name in needs:
            if (state := self.state(name)) in (BROKEN, SKIPPED):
                return f"not tried: {name} is {state}"
        return ""

    def skip(self, why: str, *names: str) -> None:
        """Add those of the links that were not tried, as they can't be."""
        for name in names:
            if not self.state(name):
                self.add(name, SKIPPED, why)

    def ask(self, name: str, needs: Sequence[str], question: Callable[[], None]) -> None:
        """Ask a question that adds links, unless what it hangs on is broken.

        Args:
            name: The link that is skipped, or broken if the question ends with an error.
            needs: The links that it hangs on.
            question: Adds one or more links.
        """
        if why := self.lacks(needs):
            return self.skip(why, name)
        try:
            return question()
        except DlctlError as error:
            return self.add(name, BROKEN, error.message, error.hint)
