"""The operations on trainings: submit, list, look, change, delete."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
from pydantic import Field, Json, RootModel
from starlette.responses import Response

from dlctl.contract import TUNABLE, State
from dlctl.serve.operations import (
    BASE,
    JSON,
    MOST_TAGS,
    Call,
    File,
    Operation,
    Site,
    Strict,
    Tag,
    Text,
    answer,
    like,
    object_of,
    page_of,
)
from dlctl.serve.problems import NotFound, json_bytes
from dlctl.serve.uploads import COMMIT, MANIFEST, URL, folder_of, text_of

if TYPE_CHECKING:
    from dlctl.lifecycle.many import Sent
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record

_MOST_ROWS = 500


class Asked(Strict):
    """Changes of a manifest, as the options of `dlctl submit` make them."""

    learners: Annotated[int | None, Field(ge=1)] = None
    nodes: Annotated[int | None, Field(ge=1)] = None
    learners_per_node: Annotated[int | None, Field(ge=1)] = None
    gpus: Annotated[int | None, Field(ge=0)] = None
    cpus: Annotated[float | None, Field(gt=0)] = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    set: dict[str, Any] | list[str] = Field(default_factory=dict)
    """By the manifest's keys; or as an answer has them, `KEY=VALUE` each."""

    def overrides(self) -> Overrides:
        """Return them as the use cases take them."""
        from dlctl.manifest.overrides import overrides_of

        options = self.model_dump(exclude={"set"})
        if isinstance(self.set, list):
            return replace(overrides_of(options, {}), set=tuple(self.set))
        return overrides_of(options, self.set)


class FromGit(Strict):
    """Code that is in Git."""

    url: Annotated[str, like(URL)]
    commit: Annotated[str, like(COMMIT)]
    """The full hash."""


class New(Strict):
    """A training to submit."""

    manifest: str | dict[str, Any] | None = None
    """The text of manifest.yml, or what it holds; null: it is in the code."""
    git: FromGit | None = None
    model: str | None = None
    """Train this version of a stored model, in place of code."""
    again: Annotated[str | None, Field(alias="from")] = None
    """Train the code and the manifest of this training anew, with `overrides`; at its site unless
    `site` names another."""
    site: Site | None = None
    tags: list[Tag] = Field(default_factory=list, max_length=MOST_TAGS)
    overrides: Asked = Asked()


class NewForm(New):
    """A training to submit, as the parts of a form."""

    manifest: Text | None = None
    git: Json[FromGit] | None = None
    overrides: Json[Asked] = Asked()
    code: File | None = None
    """A ZIP or a tar."""


class Listing(Strict):
    """Which trainings."""

    name: str | None = None
    state: list[State] = Field(default_factory=list)
    tag: list[Tag] = Field(default_factory=list)
    site: Site | None = None
    limit: Annotated[int, Field(ge=1, le=_MOST_ROWS)] = 100
    cursor: str | None = None


Setting = Annotated[str, like(re.compile("|".join(TUNABLE)))]


class Plain(Strict):
    """Halt or cancel it, or save a checkpoint."""

    do: Literal["halt", "cancel", "save"]


class Resume(Strict):
    """Continue from the newest checkpoint."""

    do: Literal["resume"]
    overrides: Asked = Asked()
    epochs: Annotated[int, Field(ge=0)] | Annotated[str, like(re.compile(r"(\+?[0-9]+)?"))] = ""
    """How many the built-in loop trains in all, or as "+10" how many more; then one that has
    completed goes on, too."""


class Tune(Strict):
    """Change settings while it trains."""

    do: Literal["tune"]
    settings: Annotated[
        dict[Setting, int | float],
        Field(min_length=1, json_schema_extra={"additionalProperties": False}),
    ]


class Note(Strict):
    """Add a remark, or take one away."""

    do: Literal["note"]
    text: str = ""
    remove: Annotated[int, Field(ge=0)] = 0
    """The number of the remark that goes, from 1."""


class Change(RootModel[Annotated[Plain | Resume | Tune | Note, Field(discriminator="do")]]):
    """The verb for a training."""


class Other(Strict):
    """The training to compare with."""

    other: Annotated[str, Field(alias="with")]


class Deletion(Strict):
    """The options of a deletion."""

    forget: bool = False
    """Remove only what is known here."""


# One and many -------------------------------------------------------------------------------------


async def list_(call: Call, *, search: bool = False) -> Response:
    """Return a page of trainings, the newest first."""
    from dlctl.service.client import Filter

    query, wanted = call.query, Filter(call.query.name, call.query.state, call.query.tag)
    known = await call.desk.records()
    records = [
        record for record in known
        if wanted.fits(record) and query.site in (None, record.site)
        and (record.is_search or not search)
    ]  # fmt: skip
    call.desk.keep_new(records)
    records.sort(key=_place, reverse=True)
    if query.cursor is not None:
        records = [each for each in records if _place(each) < query.cursor]
    page, more = records[: query.limit], len(records) > query.limit
    cursor = _place(page[-1]) if more else None

    def content() -> bytes:
        return json_bytes({"items": [record.plain() for record in page], "next": cursor})

    return Response(await anyio.to_thread.run_sync(content), media_type=JSON)


def _place(record: Record) -> str:
    """Return what tells where a training stands in lists; a query may hold it as it is."""
    return f"{record.created_at.replace('+00:00', 'Z')}~{record.training_id}"


def submit(call: Call) -> Response:
    """Submit a training, once for each key."""
    from dlctl.service.again import manifest_of
    from dlctl.service.submit import refuse_several

    wanted, code = call.body, getattr(call.body, "code", None)
    refuse_several(wanted.manifest or wanted.git or code, wanted.model, wanted.again)
    git = (wanted.git.url, wanted.git.commit) if wanted.git else None
    path = Path(MANIFEST)
    if wanted.again:
        earlier = call.desk.find_now(wanted.again)
        path, wanted.site = manifest_of(call.desk.mine, earlier), wanted.site or earlier.site
    elif wanted.model is None:
        text = None if wanted.manifest is None else text_of(wanted.manifest)
        path = folder_of(text, code.file if code else None, git) / MANIFEST
    record = send(call, wanted, path)
    where = f"{BASE}/trainings/{record.training_id}"
    return answer(record.plain(), 201, {"location": where})


def send(call: Call, wanted: New, path: Path) -> Record:
    """Submit what a request has brought; the same key and body mean the same training."""
    from dlctl.request.variants import variants
    from dlctl.service.client import checked_tags
    from dlctl.service.submit import submit_variants

    desk = call.desk
    request = wanted.model_dump_json(exclude={"manifest", "git", "code"}) + str(path)
    with desk.open(wanted.site or desk.site) as session:
        sent = submit_variants(
            session, desk.mine.store, variants([path], wanted.overrides.overrides()), wanted.model,
            checked_tags(wanted.tags), desk.mine.tell, key=call.key,
            body=hashlib.sha256(request.encode()).hexdigest(),
        )  # fmt: skip
        return made_by(sent)


def made_by(sent: Sent) -> Record:
    """Return what a request has submitted.

    Raises:
        NotFound: it was deleted since.
    """
    if not sent.batch.records:
        raise NotFound("the training that this Idempotency-Key has made was deleted")
    return sent.settled()


def show(call: Call) -> Response:
    """Return all about a training."""
    from dlctl.service.describe import describe

    with call.training() as (session, record):
        found = describe(session, record, call.desk.mine.store, call.desk.mine.tell)
    return answer(found.plain())


def change(call: Call, *, search: bool = False) -> Response:
    """Halt, cancel, resume, tune or save; or add a remark, which asks no site."""
    from dlctl.service import verbs
    from dlctl.service.client import note

    mine, wanted = call.desk.mine, call.body.root
    if wanted.do == "note":
        record = call.desk.find_now(call.part("id"), search=search)
        record = note(mine.store, record, wanted.text, wanted.remove)
        return answer({"training": record.plain(), "told": "\n".join(record.notes)})
    with call.training(search=search) as (session, record):
        record, sentence = verbs.act(
            session, record, mine.store, wanted.do, mine.tell,
            settings=wanted.settings if wanted.do == "tune" else None,
            overrides=wanted.overrides.overrides() if wanted.do == "resume" else None,
            epochs=str(wanted.epochs) if wanted.do == "resume" else "",
        )  # fmt: skip
    call.desk.keep_new([record])
    return answer({"training": record.plain(), "told": sentence})


def compare(call: Call) -> Response:
    """Return how a training differs from another one."""
    from dlctl.service.difference import difference

    first, second = (call.desk.find_now(each) for each in (call.part("id"), call.query.other))
    return answer(difference(call.desk.mine, first, second))


def delete(call: Call) -> Response:
    """Delete a training that has ended."""
    from dlctl.service import verbs

    record = call.desk.find_now(call.part("id"))
    verbs.delete(call.desk.mine, [record], forget=call.query.forget).one()
    return answer(asdict(verbs.Deleted(record.training_id)))


CHANGED = object_of(training="training", told=str)

_ONE = f"{BASE}/trainings/{{id}}"
OPERATIONS = (
    Operation("GET", f"{BASE}/trainings", "list_trainings", "Trainings, the newest first.", list_,
              Listing, answer=page_of("training")),
    Operation("POST", f"{BASE}/trainings", "submit_training",
              "Submit a training: JSON, or a form with the parts manifest, code (ZIP or tar), "
              "site, tags, overrides; or with `from` an earlier one anew.", submit,
              body=New, form=NewForm, answer="training", status=201, has_key=True, may_fail=(404,)),
    Operation("GET", _ONE, "show_training", "All about a training.", show, answer="details",
              may_fail=(404,)),
    Operation("PATCH", _ONE, "change_training", "Halt, cancel, resume, tune it, save a "
              "checkpoint, or add a remark.", change, body=Change, answer=CHANGED, may_fail=(404,)),
    Operation("GET", f"{_ONE}/diff", "compare_trainings", "How it differs from another one: code, "
              "metrics, plan, manifest.", compare, Other, answer="model-difference",
              may_fail=(404,)),
    Operation("DELETE", _ONE, "delete_training", "Delete one that has ended.", delete, Deletion,
              answer="deleted", may_fail=(404,)),
)  # fmt: skip
