"""Follow the progress bars of a log: `45%|####    | 450/1000 [00:05<00:06, loss=0.5]`. Pure.

A training's bar moves its step; one of a validation, of a download or around the epochs does not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BAR = re.compile(r"(?:\s*([^|]{0,200}?):)?\s*\d+%\|[^|]{0,400}\|\s*(\d+)/(\d+) \[")
_VALIDATION = re.compile(r"\b(val|valid|eval|test)(id|uat|ing|ion|\b)", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch\b[\s:#=]*[\[(]?(\d+)(\s*(?:/|of)\s*\d+)?", re.IGNORECASE)
_TRAINS = re.compile(r"\btrain", re.IGNORECASE)


class Bar(NamedTuple):
    """A bar as it was drawn."""

    inner: int
    of: int
    epoch: int | None
    """That its name tells."""
    is_of: bool
    """Whether the name tells of how many epochs, as `Epoch 1/3`, which counts them from 1."""
    group: str
    """`validation`, `test`, `train`, or "" if the name tells nothing."""
    is_other: bool
    """Whether the name tells of something else, such as a download."""
    end: int
    """Where the text behind the numbers begins."""


def read(line: str) -> Bar | None:
    """Return the bar that a line begins with."""
    found = _BAR.match(line)
    if found is None:
        return None
    name = found[1] or ""
    epoch, validation = _EPOCH.search(name), _VALIDATION.search(name)
    group = "train" if epoch or _TRAINS.search(name) else ""
    if validation:
        group = "test" if validation[1].lower() == "test" else "validation"
    return Bar(
        int(found[2]), int(found[3]), int(epoch[1]) if epoch else None,
        bool(epoch and epoch[2]), group, bool(name.strip() and not group), found.end() - 1,
    )  # fmt: skip


class Bars(NamedTuple):
    """How far the bar of the training has come."""

    inner: int = 0
    of: int = 0
    base: int = 0
    """The steps of the bars before."""
    is_main: int = 0
    """1 once something was measured beside this bar: one of another length is another's."""
    from_zero: int = 0
    """1 if the first epoch is 0."""

    def beside_values(self) -> Bars:
        """Return the same, once metrics of the training stand beside the bar."""
        return self._replace(is_main=1) if self.of else self

    def after(self, bar: Bar, *, measured: bool = False) -> tuple[Bars, int | None]:
        """Return where the training is once a bar is drawn, and its step; None: as before.

        Args:
            measured: Whether metrics of the training stand in it.
        """
        if bar.is_other or bar.group not in ("", "train"):
            return self, None
        if self.is_main and bar.of != self.of and not measured:
            return self, None
        base, from_zero = self.base, self.from_zero
        if bar.epoch is not None:
            from_zero = int(from_zero or not bar.is_of or bar.epoch == 0)
            base = max(0, bar.epoch - 1 + from_zero) * bar.of
        elif self.is_main and (bar.of != self.of or bar.inner < self.inner):
            base += self.of
        return Bars(bar.inner, bar.of, base, int(self.is_main or measured), from_zero), (
            base + bar.inner
        )
