"""Stored models as objects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlctl.api.room import mine, site_named

if TYPE_CHECKING:
    from dlctl.contract import ModelVersion


@dataclass(frozen=True)
class StoredModel:
    """A version of a stored model."""

    version: ModelVersion
    site: str

    @property
    def label(self) -> str:
        """Return `digits-3k9f@2`, which `submit(model=…)` takes."""
        return self.version.label

    def show(self) -> dict[str, Any]:
        """Return all about the version."""
        return asdict(self.version) | {"site": self.site}

    def pull(self, to: str | Path) -> Path:
        """Download its files, and verify each; return the folder."""
        from dlctl.models.pull import pull
        from dlctl.service.models import models_at

        known, folder = mine(), Path(to)
        with models_at(known, self.site) as there, known.tell.progress("fetching") as on_progress:
            pull(there.session, there.version(self.label), folder, on_progress)
        return folder

    def __repr__(self) -> str:
        return f"<StoredModel {self.label} at {self.site}>"


def model(reference: str, *, site: str | None = None) -> StoredModel:
    """Return a version of a stored model.

    Args:
        reference: A name or id, with `@NUMBER` or `@ALIAS` behind it; the newest without.
        site: The one that is known to have it by default.

    Raises:
        RecordError: there is none.
    """
    from dlctl.models.known import the_site_of
    from dlctl.service.models import models_at

    where = site or the_site_of(reference) or site_named(None)
    with models_at(mine(), where) as there:
        return StoredModel(there.version(reference).version, where)


def stored_models(
    *, site: str | None = None, tag: str | None = None, offline: bool = False
) -> list[StoredModel]:
    """Return the newest version of each stored model.

    Args:
        site: Only this one; by default the default site and all where models are known.
        offline: Ask none; return what is known here.
    """
    from dlctl.service.models import known_models

    found = known_models(mine(), site, site_named(None), offline=offline)
    return [StoredModel(each.version(each.numbers[-1]), each.site) for each in found
            if tag is None or tag in each.tags]  # fmt: skip
