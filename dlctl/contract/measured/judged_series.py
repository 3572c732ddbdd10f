"""Choose the series by which a training is judged, and the direction in which it improves. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dlctl.contract.metrics import LEARNING_RATE, Source

VALIDATED = ("validation", "test", "eval", "valid", "val")
"""Groups of data that a training does not learn from."""
TRIALS = "trials"
"""The group of a search's values: each is of another trial, so they are no curve of a training."""
RATE_NAMES = (LEARNING_RATE, "lr")
_GROUPS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "eval": "validation",
    "test": "test",
}
_GROUPED = re.compile(rf"({'|'.join(_GROUPS)})[-_/](.+)")
_LOWER = re.compile(
    r"\b(m?log)?loss\b|\berr(or)?\b|perplexity|\bppl\b|\bmae\b|\br?mse\b|\bwer\b|\bcer\b|\bnll\b|\bbpc\b|\bfid\b"
)
_HIGHER = re.compile(
    r"\bacc(uracy)?\b|precision|recall|\bf1\b|\bauc|\bmap\b|\biou\b|dice|bleu|rouge|psnr|ssim|reward|score|top.?\d"
)


@dataclass(frozen=True, order=True)
class Key:
    """The identity of a series."""

    source: str
    """A `Source`."""
    learner: int
    group: str
    """Which data the values are of, such as `train`, `validation`, `test`; empty if unknown."""
    name: str
    """Such as `loss`."""

    @property
    def shown(self) -> str:
        """Return the name for people: `validation loss`, `learner 1: loss`."""
        words = f"{self.group} {self.name}".strip()
        return f"learner {self.learner}: {words}" if self.learner else words


def key_of(source: Source, learner: int, group: str, name: str) -> Key:
    """Return the key of a series; `validation_loss` is the loss of the group `validation`."""
    if source is Source.NODE:
        return Key(source.value, learner, group, name)
    if not group:
        group, name = data_of(name)
    return Key(source.value, learner, group, name)


def data_of(name: str) -> tuple[str, str]:
    """Return the group that a name begins with, and the rest.

    `val_loss` is a validation's loss, and so are W&B's `val/loss` and XGBoost's `eval-rmse`.
    """
    found = _GROUPED.fullmatch(name)
    return (_GROUPS[found[1]], found[2]) if found else ("", name)


def is_better_lower(name: str) -> bool | None:
    """Return whether lower values are better; None if the name does not tell."""
    words = name.lower().replace("_", " ").replace("/", " ").replace("-", " ")
    if _LOWER.search(words):
        return True
    return False if _HIGHER.search(words) else None


def judged(keys: Iterable[Key]) -> Key | None:
    """Return the series by which a training is judged.

    It is of validation data if there is any, and an accuracy rather than a loss. A search has none.
    """
    mine = [
        k for k in sorted(keys)
        if k.source != Source.NODE.value and k.learner == 0 and k.group != TRIALS
    ]  # fmt: skip
    known = [key for key in mine if is_better_lower(key.name) is not None]
    for groups in (VALIDATED, None):
        for lower in (False, True):
            for key in known:
                if (groups is None or key.group in groups) and is_better_lower(key.name) is lower:
                    return key
    return None
