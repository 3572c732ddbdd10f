"""Read a line that a person's own loop prints: `epoch 3 | 200/2983 batches | loss 6.84`. Pure.

A number counts as a metric if the word before it names one, such as `loss`, `val acc` or `ppl`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dlctl.contract.measured.judged_series import RATE_NAMES, VALIDATED, data_of, is_better_lower
from dlctl.contract.metrics import LEARNING_RATE

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b"
HINTS = re.compile(
    r"loss|acc|err|ppl|perplex|precision|recall|f1|auc|iou|dice|bleu|rouge|psnr|ssim|reward|score"
    r"|top.?\d|mae|mse|wer|cer|nll|bpc|fid|\bmap\b|\blr\b|learning.rate",
    re.IGNORECASE,
)
"""A line without any of these names no metric."""
WORDS = (
    "loss", "acc", "err", "ppl", "perplex", "precision", "recall", "f1", "auc", "iou", "dice",
    "bleu", "rouge", "psnr", "ssim", "reward", "score", "top", "mae", "mse", "wer", "cer", "nll",
    "bpc", "fid", "map", "lr", "learning",
)  # fmt: skip
"""Words of which each such line has one: they are found far faster."""
_EPOCH = re.compile(
    r"(?:\bepoch\b(?:\(\w+\))?[\s:#=]*|\bepochs\b[\s:#=]*(?=\d+\s*/)|^(?:train|val|test)\w*:\s*(?=\d+\s*\[))"
    r"[\[(]?\s*(\d+)(?:\.\d+)?(?:\s*(?:/|of)\s*(\d+))?\s*[\])]?",
    re.IGNORECASE,
)
"""`epochs=20` says how many there will be."""
_STEP = re.compile(
    r"\b(?:global[ _])?(?:step|iter(?:ation)?|batch|update|it)"
    r"(?:\b|(?:e?s)\b(?=[\s:#=]*[\[(]?\s*\d+\s*/))[\s:#=]*[\[(]?\s*(\d+)(?:\s*/\s*(\d+))?(?![\w.])",
    re.IGNORECASE,
)
_PLACE = re.compile(r"[\[(]?\s*\b(\d+)\s*/\s*(\d+)(?:\s*\([^)]*\))?(?:\s*[\])]|\s+batches\b)", re.I)
"""`[ 640/60000 (1%)]`, `200/2983 batches`: how far an epoch is."""
_PAIR_OF_EPOCH = re.compile(
    r"^\W*\[\s*(\d+)\s*,\s*(\d+)()\s*\]|^\W*\[(\d+)/\d+\]\s*\[(\d+)/(\d+)\]"
)
"""`[1,  2000] loss: 2.1`, `[0/5][10/30] loss: 2.1`: epoch and batch."""
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_RESULT = re.compile(r"^\s*\* +\S+@\d")
"""` * Acc@1 30.000`: what ImageNet's loop prints after a validation."""
_VALUE = re.compile(
    rf"([A-Za-z][\w@./-]*(?:[ _][A-Za-z][\w@./-]*){{0,3}}?)(?: is| was)?\s*([:=]\s*|\s)({_NUMBER})"
    rf"(?:\s*/\s*(\d+))?(?=%|[^\w.]|\.?$)(?: +\( *({_NUMBER})\))?",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"(?:average|avg|mean|running|current|final|the|set|of|end|and)", re.IGNORECASE)
_OTHERS = re.compile(r"best|lowest|highest|previous|prev|old|target|ema", re.IGNORECASE)
"""Words before the value of another step than the line's."""
_LOOKS_BACK = re.compile(r"best|load|resum|restor|early|sav(?:e|ing)", re.IGNORECASE)
_SET = re.compile(
    r"^\W*(?:\*+ *)?(train|val|valid|validation|test|eval|evaluation)(?:ing|ion)?\b"
    r"(?:[^:=\d]{0,20}:| (?:epoch|step|iter)\b)",
    re.IGNORECASE,
)
_SET_OF_EPOCH = re.compile(
    r"(?:\bepoch\(|\s- )(train|val|valid|validation|test|eval)(?:\)| (?:epoch|step|iter)\b)", re.I
)
"""OpenMMLab's `Epoch(val) [1][10/10]`, a logger's `main:77 - eval step=600`."""
_ROUND = re.compile(r"^\s*\[(\d+)\]\s+(?=[\w-]+(?:'s \w+)?:)")
"""XGBoost's `[10] train-rmse:0.5`, LightGBM's `[10] valid_0's auc: 0.9`."""
_GROUPS = {"train": "train", "test": "test"}


_ALMOST = 0.999
"""Only the end of a program says that all is done."""


class Line(NamedTuple):
    """The numbers of one line."""

    epoch: int | None
    inner: int | None
    """The number of a step, within its epoch or in all."""
    of: int | None
    """How many of them there are, if the line tells."""
    values: list[tuple[str, float | str]]
    """Names, `val_loss` for a validation's loss, and numbers as they were written."""
    group: str
    """What the line as a whole is about: `train`, `validation`, `test`, or ""."""
    epochs: int | None = None
    """How many epochs there will be, if the line tells."""


def read(line: str) -> Line:
    """Return what a line says."""
    epoch = inner = of = epochs = None
    text = line
    if pair := _PAIR_OF_EPOCH.match(text):
        places = pair.groups()[:3] if pair[1] else pair.groups()[3:]
        epoch, inner, of = (int(place) if place else None for place in places)
        text = text[pair.end() :]
    elif found := _ROUND.match(text):
        inner, text = int(found[1]), text[found.end() :].replace("'s ", "_")
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    for pattern in (_EPOCH, _STEP, _PLACE):
        if (found := pattern.search(text)) is None:
            continue
        if pattern is _EPOCH:
            epoch = int(found[1]) if epoch is None else epoch
            epochs = int(found[2]) if found[2] else None
        elif inner is None:
            inner, of = int(found[1]), int(found[2]) if found[2] else None
        text = f"{text[: found.start()]} | {text[found.end() :]}"
    head = _SET.match(line) or _SET_OF_EPOCH.search(line)
    word = head[1].lower() if head else ""
    group = _GROUPS.get(word, "validation" if word else "")
    group = "test" if _RESULT.match(line) else group
    is_measured = group or head or "|" in line or epoch is not None or inner is not None
    pairs = (match for match in _VALUE.finditer(text) if is_measured or match[2].strip())
    is_mean = group not in ("", "train")  # in parentheses, which is the validation's so far
    known: dict[str, float | str] = {}
    for name, value in (_named(each, is_mean) for each in pairs):
        if name:  # the first of a name is the line's own
            known.setdefault(name, value)
    values = list(known.items())
    return Line(epoch, inner, of, values, group, epochs)


def has_hint(line: str, words: Sequence[str]) -> bool:
    """Return whether a line may name a metric.

    Args:
        words: Those of `WORDS` that are anywhere in the text.
    """
    if not words:
        return False
    small = line.lower()
    return any(word in small for word in words) and HINTS.search(line) is not None


def in_group(group: str, pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the pairs of a line about a group, such as `validation`: `loss` is its loss."""
    beginning = f"{group}_" if group and group != "train" else ""
    return [(name if data_of(name)[0] or name == LEARNING_RATE else f"{beginning}{name}", value)
            for name, value in pairs]  # fmt: skip


def is_heading(line: str) -> bool:
    """Return whether an epoch without values begins; that of `best model of epoch 4` does not."""
    return _LOOKS_BACK.search(line) is None


def _named(match: re.Match[str], is_mean: bool) -> tuple[str, float | str]:
    """Return the name of a metric with its value; "" if the words name none.

    Args:
        is_mean: Take the mean that stands in parentheses behind a value.
    """
    words = [word.rstrip(".") for word in re.split(r"[ _]+", match[1].strip())]
    while len(words) > 1 and _ASIDE.fullmatch(words[0]):
        words = words[1:]
    of_data = {"train", "training", "trn", *VALIDATED}
    known = next((n for n, word in enumerate(words) if word.lower() in of_data), 0)
    if any(map(_OTHERS.fullmatch, words[: max(1, known)])):
        return "", 0.0
    words = words[known:]
    while len(words) > 2 and is_better_lower(words[-1]) is not None and words[0] not in of_data:
        words = words[1:]
    name = "_".join(words)
    value: float | str = match[5] if is_mean and match[5] else match[3]
    if match[4] and float(match[4]):
        value = float(match[3]) / float(match[4])
    if name.lower() in (*RATE_NAMES, "learning_rate"):
        return LEARNING_RATE, value
    if name.lower() in ("ms/batch", "tokens/s", "samples/s", "it/s") or (
        is_better_lower(name) is not None
    ):
        return name if name.isupper() else name.lower(), value
    return "", value


class Place(NamedTuple):
    """How far the loop of a person's own has come, where lines count the steps of each epoch."""

    inner: int = 0
    of: int = 0
    base: int = 0
    """The steps of all epochs before."""
    from_zero: int = 0
    """1 if the first epoch is 0."""
    by_epochs: int = 0
    """1 as long as no line has had a step: then an epoch counts as one."""
    is_whole: int = 0
    """1 if the steps count on from epoch to epoch, whatever number of them an epoch has."""
    first: int = -1
    """The first epoch that a line told; -1: none has."""
    before: int = 0
    """The steps of the fits before, such as those of other folds."""
    last: int = 0
    """The newest step."""

    def share(self, line: Line, epoch: int | None) -> float | None:
        """Return the share of the training that is done once a line is printed; None: unknown.

        Args:
            epoch: The newest that any line told.
        """
        if line.epochs and line.epoch is not None:
            ended = float(line.epoch + self.from_zero)
            if line.inner is not None and line.of and not self.is_whole:
                ended += line.inner / line.of - 1
            return max(0.0, min(_ALMOST, ended / line.epochs))
        if line.inner is not None and line.of and epoch is None:
            return min(_ALMOST, line.inner / line.of)
        return None

    def after(self, line: Line, epoch: int | None) -> tuple[Place, int | None]:
        """Return the place that a line tells of, and its step; None: the one before.

        Args:
            epoch: That of the line before.
        """
        first = line.epoch if self.first < 0 and line.epoch is not None else self.first
        went_back = 0 if epoch is None or line.epoch is None else epoch - line.epoch
        if went_back >= 2 and line.epoch is not None and line.epoch <= first:
            return Place(first=first, before=self.last).after(line, None)  # another fit begins
        known = self._replace(from_zero=int(self.from_zero or line.epoch == 0), first=first)
        if line.inner is None:
            is_first = self.by_epochs or not (self.inner or self.base)
            if line.epoch is None or not is_first:
                return known, None
            step = line.epoch + self.before
            return known._replace(by_epochs=1, last=step), step
        base, of, is_whole = self.base, line.of or 0, self.is_whole
        if line.epoch is not None and of:
            goes_on = epoch is not None and line.epoch > epoch and line.inner > self.inner > 0
            is_whole = int(is_whole or line.inner > of or goes_on)
            base = 0 if is_whole else max(0, line.epoch - 1 + known.from_zero) * of
        elif line.inner < self.inner and (line.epoch is None or line.epoch != epoch):
            base += self.of or self.inner
        step = self.before + base + line.inner
        return known._replace(
            inner=line.inner, of=of, base=base, by_epochs=0, is_whole=is_whole, last=step
        ), step
