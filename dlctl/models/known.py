"""Stored models as this machine knows them: their names, what a site said, and the local record.

The local record keeps what was last known about each, so that a list needs no site. Losing it loses
no model.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import LATEST, MODEL_PREFIX, ModelVersion
from dlctl.errors import NoSuch, RecordError
from dlctl.record import state_directory
from dlctl.record.file import read_rows, write
from dlctl.record.names import ids_fitting, only_fitting
from dlctl.units import natural

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
        raise NoSuch(
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


@dataclass(frozen=True)
class KnownModel:
    """All versions of a model without their files, its aliases and its tags."""

    model_id: str
    site: str
    heads: dict[str, ModelVersion] = field(default_factory=dict)
    """By number."""
    aliases: dict[str, int] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    description: str = ""
    uses: list[str] = field(default_factory=list)
    """`<n>.<training id>` for each training that uses, or has used, a version."""
    seen_at: float = 0.0
    """When the site last answered about it (Unix seconds here)."""
    stale_since: float | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        rest = {name: value for name, value in vars(self).items() if name not in ("heads", "uses")}
        heads = [
            {name: value for name, value in asdict(self.version(n)).items() if name != "files"}
            for n in self.numbers
        ]
        return rest | {"name": self.name, "versions": heads}

    @property
    def numbers(self) -> list[int]:
        """Return the versions that exist, the oldest first."""
        return sorted(int(number) for number in self.heads)

    @property
    def name(self) -> str:
        """Return the name that the newest version was given."""
        return self.version(self.numbers[-1]).name

    def version(self, number: int) -> ModelVersion:
        """Return a version, without its files."""
        return self.heads[str(number)]

    def aliases_of(self, number: int) -> list[str]:
        """Return the aliases of a version; the newest one is always `latest`."""
        latest = [LATEST] if number == self.numbers[-1] else []
        return [*sorted(a for a, n in self.aliases.items() if n == number), *latest]

    def number_of(self, which: str) -> int:
        """Return the number that a version's number or alias means; empty: the newest.

        Raises:
            RecordError: there is no such version.
        """
        if which in ("", LATEST):
            return self.numbers[-1]
        number = int(which) if which.isdecimal() else self.aliases.get(which)
        if number in self.numbers:
            return number
        kind = "version" if which.isdecimal() else "alias"
        raise NoSuch(
            f"the model {self.model_id} has no {kind} {which}",
            hint=f"`dlctl models show {self.model_id}` lists its versions and aliases",
        )


def find_model(models: Sequence[KnownModel], wanted: str, where: str) -> KnownModel:
    """Return the model with this id, or a unique beginning or end of it.

    Raises:
        RecordError: there is none, or several.
    """
    by_id = {model.model_id: model for model in models}
    unknown, hint = f"there is no model {wanted!r} {where}", "`dlctl models list` shows them all"
    return by_id[only_fitting(wanted, sorted(by_id), "model", unknown, hint)]


class ModelRecord:
    """The record's file.

    Args:
        tell: Called with one sentence about what can't be written: the site knows it all the same.
    """

    def __init__(
        self, path: Path | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.path = path or state_directory() / "record.db"
        self._tell = tell

    def all(self) -> list[KnownModel]:
        """Return every model that this version understands, in the natural order of their ids."""
        rows = read_rows(self.path, "models", "model_id, site")
        found = [contract.understood(KnownModel, row["known"]) for row in rows]
        whole = [model for model in found if model and model.heads]
        return sorted(whole, key=lambda model: natural(model.model_id))

    def remember(self, site: str, models: Iterable[KnownModel]) -> None:
        """Replace what is known about a site's models."""
        rows = [(model.model_id, site, contract.to_json(model)) for model in models]

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM models WHERE site = ?", [site])
            connection.executemany("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", rows)

        try:
            write(self.path, change)
        except RecordError as error:
            self._tell(f"{error.message}; what is known is not written down")

    def stale(self, site: str) -> list[KnownModel]:
        """Return a site's models as they were last known, and remember that it does not answer."""
        now = time.time()
        known = [replace(m, stale_since=m.stale_since or now) for m in self.of(site)]
        self.remember(site, known)
        return known

    def of(self, site: str) -> list[KnownModel]:
        """Return a site's models as they were last known."""
        return [model for model in self.all() if model.site == site]

    def sites(self) -> list[str]:
        """Return the sites that are known to have models."""
        return sorted({model.site for model in self.all()})

    def made_from(self, training_id: str) -> list[str]:
        """Return the versions that a training made, as `ID@N`."""
        return [
            model.version(number).label
            for model in self.all()
            for number in model.numbers
            if model.version(number).training_id == training_id
        ]


def sites_of(wanted: str) -> list[str]:
    """Return the sites where the models that a person may mean were last seen.

    Raises:
        RecordError: the text names no model.
    """
    known = ModelRecord().all()
    found = ids_fitting(parse_reference(wanted).model, [model.model_id for model in known])
    return sorted({model.site for model in known if model.model_id in found})


def the_site_of(wanted: str) -> str | None:
    """Return the only one of these sites; None if there is none.

    Raises:
        RecordError: there are several, or the text names no model.
    """
    sites = sites_of(wanted)
    if len(sites) > 1:
        raise NoSuch(
            f"{wanted!r} fits models at {' and '.join(sites)}",
            hint="add --site, or type the whole id: `dlctl models list` shows both",
        )
    return sites[0] if sites else None
