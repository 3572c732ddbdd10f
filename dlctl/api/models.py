"""Stored models as objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlctl.api.jobs import Training
from dlctl.api.room import listed, mine, site_named

if TYPE_CHECKING:
    from dlctl.contract import ModelVersion
    from dlctl.service.models import ModelsAt, Source


@dataclass(frozen=True)
class StoredModel:
    """A version of a stored model, which never changes; aliases and tags do."""

    version: ModelVersion
    site: str

    @property
    def label(self) -> str:
        """Return `digits-3k9f@2`, which `submit(model=…)` takes."""
        return self.version.label

    def show(self) -> dict[str, Any]:
        """Return all about the version and its model, as `dlctl models show --json` prints it."""
        from dlctl.service.models import models_at

        with models_at(mine(), self.site) as there:
            return there.version(self.label).plain()

    def pull(self, to: str | Path | None = None) -> Path:
        """Download its files, and verify each; return the folder.

        Args:
            to: A folder of its label by default.
        """
        from dlctl.models.pull import pull
        from dlctl.service.models import models_at

        known, folder = mine(), Path(to or self.label)
        with models_at(known, self.site) as there, known.tell.progress("fetching") as on_progress:
            pull(there.session, there.version(self.label), folder, on_progress)
        return folder

    def update(
        self, source: Training | str | Path | None = None, *, alias: str | None = None,
        tags: str | Sequence[str] = (), remove_aliases: str | Sequence[str] = (),
        remove_tags: str | Sequence[str] = (), description: str | None = None,
        results: str = "*",
    ) -> StoredModel:  # fmt: skip
        """Add a version to its model; or without a source give this version an alias, and tags.

        Args:
            source: A training that has ended, or a folder.
            results: Of a training: a pattern of the results' paths.

        Returns:
            The new version, or this one.
        """
        from dlctl.models.changes import Changes
        from dlctl.service.models import models_at, wish

        words = wish("", listed(tags), [alias] if alias else [], description)
        gone = Changes(removed_tags=listed(remove_tags), removed_aliases=listed(remove_aliases))
        with models_at(mine(), self.site) as there:
            new, number = there.update(self.label, words, _source(source, results), gone)
            return _whole(there, f"{new.model_id}@{number}")

    def copy(self, site: str, *, alias: str | None = None) -> StoredModel:
        """Copy it to another site, where it gets an id of its own; sends only what is not there."""
        from dlctl.service.models import models_at, wish

        words = wish(aliases=[alias] if alias else [])
        with models_at(mine(), self.site) as there, models_at(mine(), site) as target:
            return _whole(target, there.copy(there.version(self.label), target, words).label)

    def delete(self, *, all_versions: bool = False) -> None:
        """Delete this version, or its model, unless anything refers to it.

        Raises:
            RecordError: names all that refers to it.
        """
        from dlctl.service.models import models_at

        with models_at(mine(), self.site) as there:
            meant = self.version.model_id if all_versions else self.label
            there.delete(*there.deletable(meant))

    def __repr__(self) -> str:
        return f"<StoredModel {self.label} at {self.site}>"


def store_model(
    source: Training | str | Path, name: str = "", *, alias: str | None = None,
    tags: str | Sequence[str] = (), description: str | None = None, site: str | None = None,
    results: str = "*",
) -> StoredModel:  # fmt: skip
    """Store a new model: what a training has made with its code, or a folder with its manifest.

    Args:
        source: A training that has ended, or a folder.
        name: The manifest's name by default.
        alias: A name for this version, such as `best`.
        site: Of a folder: that of `dlctl config site` by default. A training's is its own.
        results: Of a training: a pattern of the results' paths.
    """
    from dlctl.service.models import models_at, wish

    words = wish(name, listed(tags), [alias] if alias else [], description)
    where = source.site if isinstance(source, Training) else site_named(site)
    with models_at(mine(), where) as there:
        made = there.make(words, _source(source, results))
        there.read()
        return _whole(there, made.label)


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

    with models_at(mine(), site or the_site_of(reference) or site_named(None)) as there:
        return _whole(there, reference)


def stored_models(
    *, site: str | None = None, tag: str | None = None, offline: bool = False,
    all_versions: bool = False,
) -> list[StoredModel]:  # fmt: skip
    """Return the newest version of each stored model, without its list of files.

    Args:
        site: Only this one; by default the default site and all where models are known.
        offline: Ask none; return what is known here.
        all_versions: Return the older versions, too.
    """
    from dlctl.service.models import known_models

    found = known_models(mine(), site, site_named(None), offline=offline)
    return [StoredModel(each.version(number), each.site) for each in found
            if tag is None or tag in each.tags
            for number in each.numbers[0 if all_versions else -1 :]]  # fmt: skip


def _source(source: Training | str | Path | None, results: str) -> Source:
    from dlctl.service.models import Source

    if isinstance(source, Training):
        return Source(None, source.id, results)
    return Source(None if source is None else Path(source), None, results)


def _whole(there: ModelsAt, reference: str) -> StoredModel:
    return StoredModel(there.version(reference).version, there.session.site.name)
