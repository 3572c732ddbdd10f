"""The operations on searches, stored models and sites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import Field
from starlette.responses import Response

from dlctl import __version__
from dlctl.errors import RecordError
from dlctl.serve.operations import (
    BASE,
    Call,
    File,
    Operation,
    Site,
    Strict,
    answer,
    object_of,
    page_of,
)
from dlctl.serve.problems import NotFound
from dlctl.serve.trainings import CHANGED, Change, Listing, change, list_, made_by
from dlctl.serve.uploads import MANIFEST, folder_of

if TYPE_CHECKING:
    from dlctl.service.models import ModelsAt

_SEARCH = "search.yml"


class NewSearch(Strict):
    """A search to start, as the parts of a form."""

    code: File
    """A ZIP or a tar with search.yml in it."""
    site: Site | None = None


class AtSite(Strict):
    """The site that is meant; by default the model's, or else that of `dlctl config site`."""

    site: Site | None = None


class Models(AtSite):
    """Which stored models."""

    tag: str | None = None
    offline: bool = True
    """Ask no site; return what is known here."""


class VersionWords(Strict):
    """Words about a version of a model."""

    tags: list[str] = Field(default_factory=list)
    aliases: list[str] = Field(default_factory=list)
    description: str | None = None
    results: str = "*"
    """Which results of the training."""


class NewModel(VersionWords):
    """A model that is made of what a training has made."""

    training: str
    name: str = ""


class ModelChange(VersionWords):
    """A new version, which a training has made; and changes of the model's words."""

    training: str | None = None
    removed_tags: list[str] = Field(default_factory=list)
    removed_aliases: list[str] = Field(default_factory=list)


def start_search(call: Call) -> Response:
    """Start a search, once: what is sent again takes up the one that was broken off."""
    from dlctl.search.load import load_search
    from dlctl.search.start import start

    mine, loaded = call.desk.mine, load_search(
        folder_of(None, call.body.code.file, name=_SEARCH) / _SEARCH)  # fmt: skip
    with call.desk.open(call.body.site or call.desk.site) as session:
        record = made_by(start(session, loaded, mine.store, mine.tell, call.key))
    where = f"{BASE}/searches/{record.training_id}"
    return answer(record.plain(), 201, {"location": where})


def show_search(call: Call) -> Response:
    """Return how far a search is."""
    from dlctl.search.summary import counts
    from dlctl.service import verbs

    with call.training(search=True) as (session, record):
        known, overview = verbs.status(session, record, call.desk.mine.store)
    return answer(known.plain() | asdict(counts(overview, known)))


def list_trials(call: Call) -> Response:
    """Return the trials of a search."""
    from dlctl.search.overview import read_overview

    with call.training(search=True) as (session, record):
        rows = read_overview(session, record).trials.rows
    return answer({"items": [asdict(each) for each in rows], "next": None})


def list_models(call: Call) -> Response:
    """Return the stored models."""
    from dlctl.service.models import known_models

    query, desk = call.query, call.desk
    found = known_models(desk.mine, query.site, desk.site, offline=query.offline)
    items = [each.plain() for each in found if query.tag is None or query.tag in each.tags]
    return answer({"items": items, "next": None})


def make_model(call: Call) -> Response:
    """Store what a training has made, once for each key."""
    from dlctl.service import models

    body = call.body
    record = call.desk.find_now(body.training)
    wish = models.wish(body.name, body.tags, body.aliases, body.description, call.key or "")
    with models.models_at(call.desk.mine, record.site) as there:
        made = there.make(wish, models.Source(None, record.training_id, body.results))
        there.read()
    return answer(asdict(made), 201)


@contextmanager
def _models(call: Call) -> Iterator[tuple[ModelsAt, str]]:
    """Open the site of the model that the path names; yield it with the reference."""
    from dlctl.models.known import parse_reference, the_site_of
    from dlctl.service.models import models_at

    name = call.part("model")
    with models_at(call.desk.mine, call.query.site or the_site_of(name) or call.desk.site) as there:
        try:
            there.find(parse_reference(name).model)
        except RecordError as error:
            raise NotFound(error.message, hint=error.hint) from error
        yield there, name


def show_model(call: Call) -> Response:
    """Return all about a version."""
    with _models(call) as (there, name):
        return answer(there.version(name).plain())


def change_model(call: Call) -> Response:
    """Add a version to a model, or change its words."""
    from dlctl.models.changes import Changes
    from dlctl.service import models

    body = call.body
    wish = models.wish("", body.tags, body.aliases, body.description)
    gone = Changes(removed_tags=body.removed_tags, removed_aliases=body.removed_aliases)
    with _models(call) as (there, name):
        source = models.Source(None, body.training, body.results)
        new, number = there.update(name, wish, source, gone)
    return answer(asdict(new.version(number)) | {"aliases": new.aliases, "tags": new.tags})


def delete_model(call: Call) -> Response:
    """Delete a model, or one version of it, unless something refers to it."""
    with _models(call) as (there, name):
        gone = there.delete(*there.deletable(name))
        return answer({"model": gone, "site": there.session.site.name, "deleted": True})


async def list_sites(_: Call) -> Response:
    """Return the sites."""
    from dlctl.sites.files import list_sites as known

    return answer({"items": [each.plain() for each in known()], "next": None})


def show_site(call: Call) -> Response:
    """Return whether a site answers, and its queue does."""
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import read_queue
    from dlctl.sites.files import list_sites as known

    name = call.part("name")
    if name not in {each.name for each in known()}:
        raise NotFound(f"there is no site {name!r}")
    answers, hint = True, ""
    try:
        with call.desk.open(name) as session:
            detail = f"{len(read_queue(session))} jobs are known there"
    except DlctlError as error:
        answers, detail, hint = False, error.message, error.hint
    return answer({"name": name, "answers": answers, "detail": detail, "hint": hint})


class About(AtSite):
    """The manifest for which to suggest resources, as text."""

    manifest: str


def suggest(call: Call) -> Response:
    """Return what a manifest should ask for, as what has run tells it."""
    from dlctl.service.suggest import suggest as find

    with TemporaryDirectory(prefix="dlctl-") as folder:
        path = Path(folder, MANIFEST)
        path.write_text(call.query.manifest, encoding="utf-8")
        return answer(find(call.desk.mine, path, call.query.site or call.desk.site).plain())


async def health(_: Call) -> Response:
    """Say that the server answers; it asks no site."""
    return answer({"status": "ok", "version": __version__})


_ONE, _MODEL = f"{BASE}/searches/{{id}}", f"{BASE}/models/{{model}}"
OPERATIONS = (
    Operation("GET", f"{BASE}/searches", "list_searches", "Searches, the newest first.",
              partial(list_, search=True), Listing, answer=page_of("training")),
    Operation("POST", f"{BASE}/searches", "start_search", "Start a search: a form "
              "with the part code, a ZIP or tar with search.yml in it.", start_search,
              form=NewSearch, answer="training", status=201, has_key=True),
    Operation("GET", _ONE, "show_search", "How far a search is.", show_search, answer="search",
              may_fail=(404,)),
    Operation("PATCH", _ONE, "change_search", "Halt, cancel or resume it, with its workers.",
              partial(change, search=True), body=Change,
              answer=CHANGED, may_fail=(404,)),
    Operation("GET", f"{_ONE}/trials", "list_trials", "Its trials.", list_trials,
              answer=page_of("trial"), may_fail=(404,)),
    Operation("GET", f"{BASE}/models", "list_models", "The stored models.", list_models, Models,
              answer=page_of("model")),
    Operation("POST", f"{BASE}/models", "make_model", "Store what a training has made.",
              make_model, body=NewModel, answer="model-version", status=201, has_key=True,
              may_fail=(404,)),
    Operation("GET", _MODEL, "show_model", "All about a version: ID, ID@VERSION or ID@ALIAS.",
              show_model, AtSite, answer="model-details", may_fail=(404,)),
    Operation("PATCH", _MODEL, "change_model", "Add a version, or change tags, aliases and the "
              "description.", change_model, AtSite, body=ModelChange, answer="model-update",
              may_fail=(404,)),
    Operation("DELETE", _MODEL, "delete_model", "Delete a model, or one version of it.",
              delete_model, AtSite, answer="model-deleted", may_fail=(404,)),
    Operation("GET", f"{BASE}/sites", "list_sites", "The sites.", list_sites,
              answer=page_of("site")),
    Operation("GET", f"{BASE}/sites/{{name}}", "show_site", "Whether a site answers.", show_site,
              answer=object_of(name=str, answers=bool, detail=str, hint=str),
              may_fail=(404,)),
    Operation("GET", f"{BASE}/suggestions", "suggest", "What a manifest should ask for, as the "
              "trainings tell that have run.", suggest, About, answer="suggestions"),
    Operation("GET", f"{BASE}/health", "health", "Whether the server answers; needs no token.",
              health, answer=object_of(status=str, version=str)),
)  # fmt: skip
