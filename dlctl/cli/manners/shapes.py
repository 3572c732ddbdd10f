"""The shapes of what `--json` prints: JSON Schemas, made of the records that the commands print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OBJECT, LIST, EITHER, LINES = (
    "an object", "a list", "an object; of several a list", "an object on each line",
)  # fmt: skip
_HERE = ("dlctl.cli.manners.printed", "dlctl.cli.manners.printed_sites")


@dataclass(frozen=True)
class Shape:
    """What some commands print of one thing.

    Args:
        text: What that thing is.
        parts: The types whose fields it has, as `module:Type`; without a module, of one of `_HERE`.
        commands: How each command prints it.
        others: Whether it may have fields that no version of dlctl names: those of a file.
    """

    text: str
    parts: Sequence[str]
    commands: dict[str, str]
    others: bool = False


_CHECK = "dlctl.site_admin.check:Check"
_MODEL_VERSION = "dlctl.contract:ModelVersion"
_RECORD = "Training"

SHAPES = {
    "training": Shape("a training, or a search", [_RECORD], {
        "list": LIST, "status": EITHER, "tag": LIST, "submit": OBJECT, "halt": EITHER,
        "cancel": EITHER, "resume": OBJECT, "search start": OBJECT, "search halt": OBJECT,
        "search resume": OBJECT, "search cancel": OBJECT}),
    "submitted": Shape("a training of several", [_RECORD, "Problem"], {"submit MANIFEST…": LIST}),
    "would-end": Shape("what a dry run says of a training", ["dlctl.service.verbs:WouldEnd"], {
        "cancel --dry-run": LIST, "delete --dry-run": LIST, "search cancel --dry-run": LIST}),
    "deleted": Shape("a training that was deleted", ["Deleted"], {"delete": EITHER}),
    "details": Shape("all about a training", [_RECORD, "Details"], {"show": OBJECT}),
    "file": Shape("a file of a folder", ["dlctl.request.left_out:FolderFile"],
                  {"render --files": LIST}),
    "script": Shape("a batch script", ["Script"], {"show --script": OBJECT}),
    "log-line": Shape("a line of a log", ["LogLine"], {"logs": LINES, "search logs": LINES}),
    "metrics": Shape("what was measured at one step", ["MetricsRecord"], {"metrics": LINES}),
    "platform": Shape("figures of a site", ["dlctl.outputs.metrics.platform:Platform"],
                      {"metrics --platform": LIST}),
    "report": Shape("where the hours went", ["dlctl.outputs.ledger:Ledger"], {"report": EITHER}),
    "order": Shape("an order to learners", ["dlctl.lifecycle.orders:Ordered"],
                   {"tune": OBJECT, "checkpoints save": OBJECT}),
    "checkpoint": Shape("a checkpoint", ["dlctl.outputs.checkpoints:Checkpoint"],
                        {"checkpoints list": LIST}),
    "checkpoint-details": Shape("all about a checkpoint", ["CheckpointDetails"],
                                {"checkpoints show": OBJECT}, others=True),
    "checkpoint-problem": Shape("what is wrong with a checkpoint", ["CheckpointProblem"],
                                {"checkpoints verify": LIST}),
    "checkpoint-difference": Shape("how two checkpoints differ", ["CheckpointDifference"],
                                   {"checkpoints diff": OBJECT}),
    "export": Shape("a model that was exported", ["ExportedModel"], {"export": OBJECT}),
    "fetched": Shape("what was fetched", ["dlctl.outputs.fetch:Fetched"], {"fetch": EITHER}),
    "version": Shape("the version of dlctl", ["Version"], {"version": OBJECT}),
    "scaffold": Shape("a new folder", ["Scaffold"], {"init": OBJECT}),
    "validated": Shape("what is wrong with a manifest", ["Validated"], {"validate": OBJECT}),
    "rendered": Shape("a plan and its scripts", ["Rendered"], {"render": OBJECT}),
    "rehearsal": Shape("what a rehearsal measured", ["dlctl.service.rehearse:Rehearsal"],
                       {"rehearse": OBJECT}),
    "model": Shape("a stored model", ["StoredModel"], {"models list": LIST}),
    "model-version": Shape("a version that was stored", [_MODEL_VERSION],
                           {"models create": OBJECT, "models copy": OBJECT}),
    "model-details": Shape("all about a version", [_MODEL_VERSION, "ShownVersion"],
                           {"models show": OBJECT}, others=True),
    "model-update": Shape("a version after an update", [_MODEL_VERSION, "UpdatedModel"],
                          {"models update": OBJECT}),
    "model-deleted": Shape("what was deleted", ["DeletedModel"], {"models delete": OBJECT}),
    "model-difference": Shape("how two versions differ", ["ModelDifference"],
                              {"models diff": OBJECT}),
    "model-pulled": Shape("a version that was downloaded", ["PulledModel"],
                          {"models pull": OBJECT}),
    "contents": Shape("what no version refers to", ["dlctl.models.changes:Collected"],
                      {"models gc": OBJECT}),
    "search": Shape("how far a search is", [_RECORD, "SearchCounts"], {"search status": OBJECT}),
    "search-details": Shape("all about a search", [_RECORD, "SearchCounts", "SearchDetails"],
                            {"search show": OBJECT}),
    "search-news": Shape("a change of a search", ["SearchNews"],
                         {"search watch": LINES, "search watch --once": OBJECT}),
    "search-export": Shape("a search and its trials", ["SearchExport"], {"search export": OBJECT}),
    "trial": Shape("a trial", ["dlctl.search.trials:TrialRow"],
                   {"search trials": LIST, "search best": OBJECT}),
    "trial-details": Shape("all about a trial", ["dlctl.search.trials:TrialRow", "TrialDetails"],
                           {"search show --trial": OBJECT}),
    "replay": Shape("whether a search does the same again", ["Replay"],
                    {"search replay": OBJECT}, others=True),
    "pool": Shape("how many workers there may be", ["dlctl.contract.search:Pool"],
                  {"search scale": LIST}),
    "site": Shape("a site", ["KnownSite"], {"sites list": LIST}),
    "site-settings": Shape("the settings of a site", ["dlctl.sites.model:Site"],
                           {"sites show": OBJECT}),
    "site-added": Shape("a site that was added", ["AddedSite"], {"sites add": OBJECT}),
    "site-removed": Shape("a site file that was removed", ["RemovedSite"],
                          {"sites remove": OBJECT}),
    "connection": Shape("a connection", ["dlctl.site_admin.connecting:Connection"],
                        {"sites connect": OBJECT, "sites disconnect": OBJECT}),
    "site-check": Shape("a check of a site", [_CHECK], {"sites check": LIST}),
    "site-setup": Shape("the Python of a site's nodes", ["dlctl.site_admin.setup:SetupAnswer"],
                        {"sites setup": OBJECT}),
    "node": Shape("a node that failed a training", ["dlctl.contract:BadNode"],
                  {"sites nodes": LIST, "sites nodes --forget": OBJECT}),
    "framework": Shape("a framework", ["KnownFramework"], {"frameworks list": LIST}),
    "framework-details": Shape("all about a framework", [
        "FrameworkDetails", "dlctl.frameworks.model:FrameworkSettings"],
        {"frameworks show": OBJECT}),
    "store": Shape("a type of data store", ["KnownStore"], {"stores list": LIST}),
    "store-details": Shape("all about a type of data store", [
        "StoreDetails", "dlctl.stores.types:Schema"], {"stores show": OBJECT}),
    "store-check": Shape("a check of a data store", ["dlctl.data.checks:StoreCheck"],
                         {"stores check": LIST}),
    "results-stored": Shape("results that went to data stores", ["StoredResults"],
                            {"stores save": OBJECT}),
    "cache": Shape("the cache of a site", ["dlctl.data.cache:SiteCache"],
                   {"stores cache": OBJECT}),
    "setting": Shape("a setting", ["Setting"], {"config": LIST}),
    "schema": Shape("a schema", ["KnownSchema"], {"schema": LIST}),
    "link": Shape("a link of the chain", ["dlctl.doctor.chain:Link"], {"doctor": LIST}),
    "adopted": Shape("what a site had", ["AdoptedTrainings"], {"adopt": OBJECT}),
    "room": Shape("what takes room at a site", ["Room"], {"du": OBJECT}),
    "pruned": Shape("what may go at a site", ["PrunedSite"], {"prune": LIST}),
}  # fmt: skip
"""By the name that `dlctl schema` knows."""


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one thing of a shape."""
    shape = SHAPES[name]
    whole: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{shape.text}, as dlctl prints it with --json",
        "type": "object", "properties": {}, "required": [],
    }  # fmt: skip
    for part in shape.parts:
        found = _schema(part)
        whole["properties"] |= found["properties"]
        whole["required"] = sorted({*whole["required"], *found.get("required", ())})
        if "$defs" in found:
            whole["$defs"] = whole.get("$defs", {}) | found["$defs"]
    return whole


def _schema(part: str) -> dict[str, Any]:
    """Return the schema of a type; what commands print has all fields, defaults included."""
    import importlib

    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Printed(GenerateJsonSchema):
        def field_is_required(self, field: Any, *more: Any, **named: Any) -> bool:
            may_lack = field["type"] == "typed-dict-field"
            return not may_lack or super().field_is_required(field, *more, **named)

    module, _, name = part.rpartition(":")
    modules = map(importlib.import_module, [module] if module else _HERE)
    known = next(vars(each)[name] for each in modules if name in vars(each))
    return TypeAdapter(known).json_schema(
        by_alias=False, schema_generator=Printed, mode="serialization"
    )
