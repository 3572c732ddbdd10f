"""How people name a stored model, one of its versions and a file of it: `digits@best/model.pt`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlctl.contract import LATEST, MODEL_PREFIX
from dlctl.errors import RecordError

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REFERENCE = re.compile(rf"({_WORD})(?:@({_WORD}))?(?:/(.+))?", re.DOTALL)
_ALLOWED = "letters, digits, '.', '_' and '-' are allowed, at most 64, the first a letter or digit"


@dataclass(frozen=True)
class Reference:
    """A model, perhaps one of its versions, perhaps a file of that."""

    model: str
    """The id, or a unique beginning or end of it."""
    which: str = ""
    """A version's number or an alias; empty: the newest version."""
    path: str = ""


def parse_reference(text: str) -> Reference:
    """Return the reference that a person has typed, with or without `model:` before it.

    Raises:
        RecordError: the text is no reference.
    """
    found = _REFERENCE.fullmatch(text.removeprefix(MODEL_PREFIX))
    if found is None:
        raise RecordError(
            f"{text!r} does not name a stored model",
            hint="write ID, ID@VERSION or ID@ALIAS; `dlctl models list` shows the ids",
        )
    return Reference(found[1], found[2] or "", found[3] or "")


def check_word(word: str, what: str) -> str:
    """Return the name of a tag or an alias if it can be one.

    Raises:
        RecordError
    """
    if not re.fullmatch(_WORD, word) or len(word) > 64:
        raise RecordError(f"{word!r} can't be {what}", hint=_ALLOWED)
    return word


def check_alias(word: str) -> str:
    """Return an alias if it can be one: `latest` and numbers mean something else.

    Raises:
        RecordError
    """
    if word == LATEST or word.isdecimal():
        means = "always the newest version" if word == LATEST else "a version's number"
        raise RecordError(f"{word!r} can't be an alias: it is {means}", hint="choose a word")
    return check_word(word, "an alias")
