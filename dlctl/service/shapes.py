"""The shapes of what `--json` prints: JSON Schemas, made of the records that the commands print."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

OBJECT, LIST, EITHER, LINES = (
    "an object", "a list", "an object; of several a list", "an object on each line",
)  # fmt: skip
_OBJECT = dict[str, Any]
_OBJECTS, _TEXTS = list[_OBJECT], list[str]


def _all(kind: object, names: str) -> dict[str, object]:
    """Return fields of one type; one that may be absent ends in `?`."""
    return dict.fromkeys(names.split(), kind)


_TENSOR = _all(str, "name difference") | _all(float | None, "largest")
_PRUNABLE = _all(str, "training_id state") | _all(float, "ended_at") | _all(int, "size_bytes")


@dataclass(frozen=True)
class Shape:
    """The fields that some commands print of one thing.

    Args:
        text: What that thing is.
        parts: The records whose fields it has, as `module:Type`, or `?module:Type` if it may lack
            them, and fields of its own by name.
        commands: How each command prints it.
        others: Whether it may have fields that no version of dlctl names: those of a file.
    """

    text: str
    parts: Sequence[str | dict[str, object]]
    commands: dict[str, str]
    others: bool = False


_TRAINING = "Training"

SHAPES = {
    "training": Shape("a training, or a search", [_TRAINING, _all(_OBJECT, "measured?")], {
        "list": LIST, "status": EITHER, "tag": LIST, "note": OBJECT, "wait": LIST,
        "submit": OBJECT, "halt": EITHER,
        "cancel": EITHER, "resume": OBJECT, "search start": OBJECT}),
    "submitted": Shape("a training of several", [_TRAINING, _all(str, "error?")], {
        "submit MANIFEST…": LIST}),
    "would-end": Shape("what a dry run says of a training", ["dlctl.service.verbs:WouldEnd"], {
        "cancel --dry-run": LIST, "delete --dry-run": LIST}),
    "forecast": Shape("what a submission would do", ["dlctl.service.forecast:Forecast"], {
        "submit --dry-run": OBJECT}),
    "deleted": Shape("a training that was deleted", ["dlctl.service.verbs:Deleted"], {
        "delete": EITHER}),
    "details": Shape("all about a training", [
        _TRAINING, "?dlctl.outputs.insight:TrainingFiles", _all(_TEXTS, "stored_as utilisation?")
        | _all(str, "output next_command shown_state starts_in_words") | _all(_OBJECT, "plan? use?")
        | _all(_OBJECTS, "orders? answers? events?") | _all(_OBJECT | None, "time_left_s?"),
    ], {"show": OBJECT}),
    "file": Shape("a file of a folder", ["dlctl.request.left_out:FolderFile"], {
        "render --files": LIST}),
    "script": Shape("a batch script", [_all(str, "script")], {"show --script": OBJECT}),
    "log-line": Shape("a line of a log", [_all(int, "attempt") | _all(str, "source line")], {
        "logs": LINES}),
    "metrics": Shape("what was measured at one step", [
        _all(str, "training source group kind event?") | _all(int | None, "step epoch learner")
        | _all(float | None, "time") | _all(int, "attempt") | _all(_OBJECT, "values")
    ], {"metrics": LINES}),
    "platform": Shape("figures of a site", ["dlctl.outputs.metrics.platform:Platform"], {
        "metrics --platform": LIST}),
    "report": Shape("where the hours went", ["dlctl.outputs.ledger:Ledger"], {"report": EITHER}),
    "report-sum": Shape("sums over trainings", ["dlctl.outputs.ledger:Sum"], {
        "report --by": LIST}),
    "order": Shape("an order to learners", ["dlctl.lifecycle.orders:Ordered"], {
        "tune": OBJECT, "checkpoints save": OBJECT}),
    "checkpoint": Shape("a checkpoint", ["dlctl.outputs.checkpoints:Checkpoint"], {
        "checkpoints list": LIST}),
    "checkpoint-details": Shape("all about a checkpoint", [
        _all(int, "step learners") | _all(_OBJECT, "settings files") | _all(_OBJECTS, "tensors")
    ], {"checkpoints show": OBJECT}, others=True),
    "checkpoint-problem": Shape("what is wrong with a checkpoint", [
        _all(int | None, "step") | _all(str, "name?") | _all(str | None, "problem")
    ], {"checkpoints verify": LIST}),
    "checkpoint-difference": Shape("how two checkpoints differ", [
        _all(str, "first second") | _all([_TENSOR], "tensors")], {"checkpoints diff": OBJECT}),
    "export": Shape("a model that was exported", [
        _all(str, "training_id file path format sha256") | _all(int, "size_bytes")
        | _all(float, "largest_difference") | _all(list[list[int]], "input_shapes")
        | _all(_TEXTS, "checked notes") | _all(bool, "dynamic_batch")], {"export": OBJECT}),
    "fetched": Shape("what was fetched", ["dlctl.outputs.fetch:Fetched"], {"fetch": EITHER}),
    "scaffold": Shape("a new folder", [_all(str, "folder") | _all(_TEXTS, "files")], {
        "init": OBJECT}),
    "validated": Shape("what is wrong with a manifest", [
        _all(str, "manifest") | _all(bool, "valid")
        | _all(_TEXTS, "problems not_in_this_version warnings")], {"validate": OBJECT}),
    "rendered": Shape("a plan and its scripts", [
        _all(str, "script train_script?") | _all("dlctl.contract:Plan", "plan?")
        | _all(dict[str, str], "store_scripts?")], {"render": OBJECT}),
    "suggestions": Shape("what a manifest should ask for", ["dlctl.service.suggest:Suggestions"], {
        "suggest": OBJECT}),
    "rehearsal": Shape("what a rehearsal measured", ["dlctl.service.costs:Rehearsal"], {
        "rehearse": OBJECT}),
    "model": Shape("a stored model", [
        _all(str, "model_id site name description") | _all(dict[str, int], "aliases")
        | _all(_TEXTS, "tags") | _all(float, "seen_at") | _all(float | None, "stale_since")
        | _all(_OBJECTS, "versions")], {"models list": LIST}),
    "model-version": Shape("a version that was stored", ["dlctl.contract:ModelVersion"], {
        "models create": OBJECT, "models copy": OBJECT}),
    "model-details": Shape("all about a version", [
        "dlctl.contract:ModelVersion", _all(str, "site description")
        | _all(_TEXTS, "tags uses damaged?") | _all(dict[str, int], "aliases")
        | _all(list[int], "versions")], {"models show": OBJECT}, others=True),
    "model-update": Shape("a version after an update", [
        "dlctl.contract:ModelVersion", _all(dict[str, int], "aliases") | _all(_TEXTS, "tags")
    ], {"models update": OBJECT}),
    "model-deleted": Shape("what was deleted", [_all(str, "model site") | _all(bool, "deleted")], {
        "models delete": OBJECT}),
    "model-difference": Shape("how two versions, or two trainings, differ", [
        _all(str, "first second") | _all(_OBJECTS, "files metrics") | _all(_TEXTS, "manifest")
        | _all(list[dict[str, str]], "origin plan?")], {"models diff": OBJECT, "diff": OBJECT}),
    "model-pulled": Shape("a version that was downloaded", [
        _all(str, "model folder") | _all(_TEXTS, "files")], {"models pull": OBJECT}),
    "contents": Shape("what no version refers to", ["dlctl.models.changes:Collected"], {
        "models gc": OBJECT}),
    "search": Shape("how far a search is", [_TRAINING, "dlctl.search.summary:Counts"], {
        "status SEARCH": OBJECT}),
    "search-details": Shape("all about a search", [
        _TRAINING, "dlctl.search.summary:Counts", "dlctl.search.summary:Whole"
    ], {"show SEARCH": OBJECT}),
    "search-news": Shape("a change of a search", [
        _all(str, "search state? reason? trouble?") | _all(Literal["state", "trial"], "event")
        | _all("dlctl.search.summary:Whole | None", "overview?")
        | _all("dlctl.search.trials:TrialRow", "trial?")
    ], {"watch": LINES, "watch --once": OBJECT}),
    "search-export": Shape("a search and its trials", [
        _all(str, "search") | _all(_OBJECT, "spec") | _all(_OBJECTS, "trials")
    ], {"search export": OBJECT}),
    "trial": Shape("a trial", ["dlctl.search.trials:TrialRow"], {
        "search trials": LIST, "search best": OBJECT}),
    "trial-details": Shape("all about a trial", [
        "dlctl.search.trials:TrialRow", _all(bool, "is_best") | _all(_OBJECTS, "reports")
        | _all(int | None, "runs") | _all(list[Any], "log")], {"show --trial": OBJECT}),
    "replay": Shape("whether a search does the same again", [
        _all(bool, "same deterministic") | _all(int, "trials timings")
        | _all(_OBJECT | None, "differs")], {"search replay": OBJECT}, others=True),
    "pool": Shape("how many workers there may be", ["dlctl.contract.search:Pool"], {
        "search scale": LIST}),
    "site": Shape("a site", [_all(str, "name kind file")], {"sites list": LIST}),
    "site-settings": Shape("the settings of a site", ["dlctl.sites.model:Site"], {
        "sites show": OBJECT}),
    "site-added": Shape("a site that was added", ["dlctl.site_admin.actions:Added"], {
        "sites add": OBJECT}),
    "site-removed": Shape("a site file that was removed", [
        _all(str, "site file") | _all(bool, "removed")], {"sites remove": OBJECT}),
    "connection": Shape("a connection", ["dlctl.site_admin.actions:Connection"], {
        "sites connect": OBJECT, "sites disconnect": OBJECT}),
    "site-setup": Shape("the Python of a site's nodes", ["dlctl.site_admin.setup:SetupAnswer"], {
        "sites setup": OBJECT}),
    "node": Shape("a node that failed a training", ["dlctl.contract:BadNode"], {
        "sites nodes": LIST, "sites nodes --forget": OBJECT}),
    "framework": Shape("a framework", [
        _all(str, "name title from folder") | _all(str | None, "job")], {"frameworks list": LIST}),
    "framework-details": Shape("all about a framework", [
        _all(str, "name path template") | _all(_OBJECTS, "environments"),
        "dlctl.frameworks.model:FrameworkSettings"], {"frameworks show": OBJECT}),
    "store": Shape("a type of data store", [
        _all(str, "type description folder") | _all(_TEXTS, "scripts")], {"stores list": LIST}),
    "store-details": Shape("all about a type of data store", [
        _all(str, "type folder"), "dlctl.stores.types:Schema"], {"stores show": OBJECT}),
    "store-check": Shape("a check of a data store", ["dlctl.store_checks:StoreCheck"], {
        "stores check": LIST}),
    "results-stored": Shape("results that went to data stores", [
        _all(str, "training_id") | _all(_TEXTS, "stored")], {"stores save": OBJECT}),
    "cache": Shape("the cache of a site", ["dlctl.data:SiteCache"], {"stores cache": OBJECT}),
    "setting": Shape("a setting", [_all(str, "name value from meaning")], {"config": LIST}),
    "schema": Shape("a schema", [_all(str, "name what") | _all(dict[str, str], "commands")], {
        "schema": LIST}),
    "link": Shape("a link of the chain", ["dlctl.doctor.chain:Link"], {
        "doctor": LIST}),
    "adopted": Shape("what a site had", [
        "dlctl.upkeep.inventory:Adopted", _all([_TRAINING], "added")], {"adopt": OBJECT}),
    "room": Shape("what takes room at a site", ["dlctl.upkeep.usage:Room"], {"du": OBJECT}),
    "pruned": Shape("what may go at a site", [
        _all(str, "site") | _all(bool, "keeps_results") | _all([_PRUNABLE], "trainings")
        | _all(_TEXTS, "forgotten") | _all(dict[str, int], "unused")
        | _all(["dlctl.contract.stores:CachedData"], "cached") | _all(int, "size_bytes")
        | _all("dlctl.models.changes:Collected | None", "contents")
        | _all("dlctl.upkeep.prune:Pruned | None", "removed")], {"prune": LIST}),
}  # fmt: skip
"""By the name that `dlctl schema` knows."""


def schema_of(name: str, refer: str = "#/$defs/{model}") -> dict[str, Any]:
    """Return the JSON Schema of one thing of a shape.

    Args:
        refer: How one schema refers to another.
    """
    shape = SHAPES[name]
    whole: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{shape.text}, as dlctl prints it with --json",
        "type": "object", "properties": {}, "required": [],
    }  # fmt: skip
    defined: dict[str, Any] = {}
    for part in shape.parts:
        may_lack = str(part).startswith("?")
        found = _schema(str(part)[1:] if may_lack else part, refer)
        required = () if may_lack else found.get("required", ())
        whole["properties"] |= found["properties"]
        whole["required"] = sorted({*whole["required"], *required})
        defined |= found.get("$defs", {})
    named = list(referred(whole))  # a later part may have another type for a field
    for name in named:
        named += [each for each in referred(defined[name]) if each not in named]
    return whole | {"$defs": {name: defined[name] for name in sorted(named)}} if named else whole


def referred(schema: Any) -> Iterator[str]:
    """Yield the names of the schemas that one refers to."""
    if isinstance(schema, dict):
        if isinstance(name := schema.get("$ref"), str):
            yield name.rpartition("/")[2]
        for inner in schema.values():
            yield from referred(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from referred(inner)


def _schema(part: str | dict[str, object], refer: str) -> dict[str, Any]:
    """Return the schema of a type; what commands print has all fields, defaults included."""
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Printed(GenerateJsonSchema):
        def field_is_required(self, field: Any, *more: Any, **named: Any) -> bool:
            may_lack = field["type"] == "typed-dict-field"
            return not may_lack or super().field_is_required(field, *more, **named)

        def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
            return False  # it would only repeat the name

    return TypeAdapter(_type(part)).json_schema(
        by_alias=False, ref_template=refer, schema_generator=Printed, mode="serialization"
    )


@cache
def _training() -> Any:
    """Return the type of what `Record.plain` makes of a training."""
    from dlctl.record import UNKNOWN_IF_0, Record

    types = get_type_hints(Record)
    return make_dataclass("Training", [
        ("created_at", float | None), ("overrides", dict[str, Any] | None, None),
        ("elapsed_s", float | None, None),
        *((name, types[name] | None, None) for name in UNKNOWN_IF_0),
    ], bases=(Record,), frozen=True)  # fmt: skip


def _type(shape: Any) -> Any:
    """Return a type that is told as `module:Type`, as fields, as a list of one, or as itself."""
    from typing_extensions import NotRequired, TypedDict

    if isinstance(shape, dict):
        known = {name: _type(kind) for name, kind in shape.items()}
        return TypedDict("Printed", {  # type: ignore[operator]
            name.rstrip("?"): NotRequired[kind] if name.endswith("?") else kind
            for name, kind in known.items()})  # fmt: skip
    if isinstance(shape, list):
        return list.__class_getitem__(_type(shape[0]))
    if shape == _TRAINING:
        return _training()
    if not isinstance(shape, str):
        return shape
    module, _, name = shape.removesuffix(" | None").rpartition(":")
    found = getattr(importlib.import_module(module), name)
    return found if shape.endswith(name) else found | None
