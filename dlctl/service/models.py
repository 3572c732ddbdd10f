"""Stored models: which there are, a new one, a new version, a copy at another site."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.errors import DlctlError, Misused, RecordError, TransportError
from dlctl.lifecycle import refresh
from dlctl.models import publish
from dlctl.models.changes import Changes, change, check_unused, delete, refuse_unknown
from dlctl.models.create import Wish, from_folder, from_training
from dlctl.models.known import (
    KnownModel,
    ModelRecord,
    check_alias,
    check_word,
    find_model,
    parse_reference,
)
from dlctl.models.reading import Found, read_models, whole_version
from dlctl.record.batches import Key, KeyTaken, claim
from dlctl.request.build import new_training_id

if TYPE_CHECKING:
    from dlctl.contract import ModelVersion
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.service.client import Client


@dataclass(frozen=True)
class Source:
    """The source of a version: a folder, or the files that a training has made.

    Raises:
        Misused: there are both.
    """

    folder: Path | None
    training_id: str | None
    results: str
    """Which of the training's files."""

    def __post_init__(self) -> None:
        if self.folder and self.training_id:
            raise Misused("name a folder or --from a training, not both")

    def __bool__(self) -> bool:
        return bool(self.folder or self.training_id)


def wish(
    name: str = "", tags: list[str] | None = None, aliases: list[str] | None = None,
    description: str | None = None, key: str = "",
) -> Wish:  # fmt: skip
    """Return what a person says about a version.

    Raises:
        RecordError: a word can't be a tag or an alias.
    """
    return Wish(name, [check_word(tag, "a tag") for tag in tags or []],
                [check_alias(alias) for alias in aliases or []], description, key=key)  # fmt: skip


class ModelsAt:
    """The models at an open site; the local record knows them, too, after each change."""

    def __init__(self, mine: Client, session: Session) -> None:
        self.mine, self.session = mine, session
        self.record = ModelRecord(tell=mine.tell.warn)
        self.read()

    def read(self) -> None:
        """Read them."""
        self.models = read_models(self.session)
        self.record.remember(self.session.site.name, self.models)

    def find(self, model: str) -> KnownModel:
        """Return a model.

        Raises:
            RecordError: there is none.
        """
        return find_model(self.models, model, f"at {self.session.site.name}")

    def version(self, reference: str) -> Found:
        """Return a version, read in full."""
        return whole_version(self.session, self.models, parse_reference(reference))

    def make(self, wish: Wish, source: Source) -> ModelVersion:
        """Store a version.

        Raises:
            RecordError: the training is at another site.
        """
        if source.training_id is None:
            assert source.folder is not None
            with self.mine.tell.progress("sending") as on_progress:
                return from_folder(
                    self.session, source.folder, wish, on_progress, self.mine.tell.note
                )
        training, site = self.mine.store.find(source.training_id), self.session.site.name
        if wish.key:
            request = json.dumps([asdict(wish), source.training_id, source.results], sort_keys=True)
            claim(self.mine.store, Key(wish.key, hashlib.sha256(request.encode()).hexdigest()))
            if made := self._made_before(wish, training):
                return made
        if training.site != site:
            raise RecordError(
                f"{training.training_id} is at {training.site}, and the model at {site}",
                hint=f"make one at its site: dlctl models create --from {training.training_id}",
            )
        (training,) = refresh(self.session, [training], self.mine.store)
        try:
            return from_training(self.session, training, wish, source.results)
        except RecordError:
            self.read()  # perhaps the same request, sent twice, has made it at this moment
            if wish.key and (made := self._made_before(wish, training)):
                return made
            raise

    def _made_before(self, wish: Wish, training: Record) -> ModelVersion | None:
        """Return the version that the request with this key has made.

        Raises:
            KeyTaken: another request, of another machine, has the key.
        """
        end = new_training_id("", wish.key).rpartition("-")[2]
        for model in self.models:
            if model.model_id.rpartition("-")[2] == end:
                made = self.version(f"{model.model_id}@{model.numbers[0]}").version
                if made.training_id != training.training_id or wish.name not in ("", made.name):
                    raise KeyTaken(f"the key {wish.key!r} was used for another request",
                                   hint="a new request needs a new key")  # fmt: skip
                return made
        return None

    def update(
        self, reference: str, wish: Wish, source: Source, gone: Changes
    ) -> tuple[KnownModel, int]:
        """Add a version to a model if there is a source for one; change its tags and aliases.

        Returns:
            The model as it is now, and the number of the version that was meant, or made.
        """
        wanted = parse_reference(reference)
        old = self.find(wanted.model)
        number = old.number_of(wanted.which)
        refuse_unknown(old, gone)  # before a version is stored
        if source:
            number = self.make(replace(wish, model=old, parent=number), source).version
            wish = Wish()
        change(self.session, old, replace(
            gone, aliases=wish.aliases, number=number, tags=wish.tags,
            description=wish.description))  # fmt: skip
        self.read()
        return self.find(old.model_id), number

    def deletable(self, reference: str) -> tuple[KnownModel, int | None]:
        """Return a model, and the number of the version that is meant; None: all of them.

        Raises:
            RecordError: there is none, or something refers to it.
        """
        wanted = parse_reference(reference)
        old = self.find(wanted.model)
        number = old.number_of(wanted.which) if wanted.which else None
        check_unused(self.session, self.models, old, number, self.mine.store)
        return old, number

    def delete(self, old: KnownModel, number: int | None) -> str:
        """Delete what `deletable` returned, and return its name."""
        delete(self.session, old, number)
        self.read()
        return old.model_id + (f"@{number}" if number else "")

    def copy(self, found: Found, to: ModelsAt, wish: Wish) -> ModelVersion:
        """Copy a version to another site.

        Raises:
            Misused: it is there.
        """
        if to.session.site.name == self.session.site.name:
            raise Misused(f"{found.version.label} is at {self.session.site.name} already")
        with self.mine.tell.progress("copying") as on_progress:
            made = publish.copy(self.session, found, to.session, to.models, wish.aliases,
                                on_progress)  # fmt: skip
        to.read()
        return made


@contextmanager
def models_at(mine: Client, site: str) -> Iterator[ModelsAt]:
    """Open a site and read its models."""
    with closing(mine.open(site)) as session:
        yield ModelsAt(mine, session)


def known_models(
    mine: Client, site: str | None, default_site: str, *, offline: bool
) -> list[KnownModel]:
    """Return the models of one site, or of all where models are known; stale ones of a silent.

    Args:
        site: None: all, and the default site, and this machine.
        offline: Ask none.
    """
    record = ModelRecord(tell=mine.tell.warn)
    if offline:
        return [model for model in record.all() if site in (None, model.site)]
    if site:
        answers = mine.each_site([site], read_models)
    else:
        answers = mine.sites_at_once({"local", default_site, *record.sites()}, read_models)
    found: dict[str, list[KnownModel]] = {}
    for name, answer in answers:
        if not isinstance(answer, DlctlError):
            record.remember(name, answer)
            found[name] = answer
            continue
        unheard = isinstance(answer, TransportError)
        if site and not unheard:
            raise answer
        mine.tell.warn(f"{name}: {answer.message}")
        found[name] = record.stale(name) if unheard else record.of(name)
    return [model for name in sorted(found) for model in found[name]]
