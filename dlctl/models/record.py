"""The local record of stored models: what was last known about each, so that a list needs no site.

It has a file of its own beside that of the trainings. Losing it loses no model.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.errors import RecordError
from dlctl.models.known import KnownModel
from dlctl.models.reference import parse_reference
from dlctl.record import state_directory
from dlctl.record_file import read_rows, write

_SCHEMA_VERSION = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS models (
    model_id TEXT NOT NULL, site TEXT NOT NULL, known TEXT NOT NULL, PRIMARY KEY (model_id, site)
)"""


class ModelRecord:
    """The record's file.

    Args:
        tell: Called with one sentence about what can't be written: the site knows it all the same.
    """

    def __init__(
        self, path: Path | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.path = path or state_directory() / "models.db"
        self._tell = tell

    def all(self) -> list[KnownModel]:
        """Return every model that this version understands, in the order of their ids."""
        rows = read_rows(self.path, {"models": "model_id, site"})["models"]
        found = [contract.understood(KnownModel, row["known"]) for row in rows]
        return [model for model in found if model and model.heads]

    def remember(self, site: str, models: Iterable[KnownModel]) -> None:
        """Replace what is known about a site's models."""
        rows = [(model.model_id, site, contract.to_json(model)) for model in models]

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM models WHERE site = ?", [site])
            connection.executemany("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", rows)

        try:
            write(self.path, _SCHEMA_VERSION, [_TABLE], change)
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
    name, known = parse_reference(wanted).model, ModelRecord().all()
    found = (
        [m for m in known if m.model_id == name]
        or [m for m in known if m.model_id.startswith(name)]
        or [m for m in known if m.model_id.endswith(name)]
    )
    return sorted({model.site for model in found})


def the_site_of(wanted: str) -> str | None:
    """Return the only one of these sites; None if there is none.

    Raises:
        RecordError: there are several, or the text names no model.
    """
    sites = sites_of(wanted)
    if len(sites) > 1:
        raise RecordError(
            f"{wanted!r} fits models at {' and '.join(sites)}",
            hint="add --site, or type the whole id: `dlctl models list` shows both",
        )
    return sites[0] if sites else None
