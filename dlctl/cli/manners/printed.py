"""What commands about trainings, models and searches print with `--json`: dictionaries, their keys.

The functions that make these dictionaries have these types, and `shapes` makes schemas of them.
Only `shapes` imports this module while a command runs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema
from typing_extensions import NotRequired, TypedDict

from dlctl.cli.manners.training_shape import training_properties
from dlctl.contract import Plan
from dlctl.search.summary import Left
from dlctl.search.trials import TrialRow

Training = Annotated[dict[str, Any], WithJsonSchema(training_properties())]


class Version(TypedDict):
    """The version of dlctl."""

    version: str


class Scaffold(TypedDict):
    """A new folder."""

    folder: str
    files: list[str]


class Validated(TypedDict):
    """What is wrong with a manifest, or what it asks for in vain."""

    manifest: str
    valid: bool
    problems: list[str]
    not_in_this_version: list[str]
    warnings: list[str]


class Rendered(TypedDict):
    """A plan and its scripts; with `--script` only the batch script."""

    script: str
    plan: NotRequired[Plan]
    train_script: NotRequired[str]
    store_scripts: NotRequired[dict[str, str]]


class Problem(TypedDict):
    """Why a training of several has no job; empty if it has one, or waits for it."""

    error: NotRequired[str]


class Deleted(TypedDict):
    """A training that was deleted."""

    training_id: str
    deleted: bool


class Details(TypedDict):
    """What is known of a training besides its record; a site that is silent leaves most out."""

    output: str
    next_command: str
    stored_as: list[str]
    shown_state: str
    starts_in_words: str
    plan: NotRequired[dict[str, Any]]
    attempts: NotRequired[list[dict[str, Any]]]
    verdict: NotRequired[dict[str, Any] | None]
    learners: NotRequired[list[dict[str, Any]]]
    servers: NotRequired[list[dict[str, Any]]]
    homes: NotRequired[dict[str, Any] | None]
    job_output: NotRequired[list[str]]
    orders: NotRequired[list[dict[str, Any]]]
    answers: NotRequired[list[dict[str, Any]]]
    utilisation: NotRequired[list[str]]
    events: NotRequired[list[dict[str, Any]]]
    time_left_s: NotRequired[dict[str, Any] | None]


class Script(TypedDict):
    """The batch script that was sent."""

    script: str


class LogLine(TypedDict):
    """A line of a log."""

    attempt: int
    source: str
    line: str


class MetricsRecord(TypedDict):
    """What was measured at one step; a value that is null is no number."""

    training: str
    step: int | None
    epoch: int | None
    time: float | None
    attempt: int
    learner: int | None
    source: str
    group: str
    kind: str
    event: NotRequired[str]
    values: dict[str, Any]


class CheckpointDetails(TypedDict):
    """A checkpoint: what its marker says, and its tensors."""

    step: int
    learners: int
    settings: dict[str, Any]
    files: dict[str, Any]
    tensors: list[dict[str, Any]]


class CheckpointProblem(TypedDict):
    """What is wrong with a checkpoint; null: nothing."""

    step: int | None
    name: NotRequired[str]
    problem: str | None


class TensorDifference(TypedDict):
    """How a tensor of two checkpoints differs."""

    name: str
    difference: str
    largest: float | None


class CheckpointDifference(TypedDict):
    """How two checkpoints differ."""

    first: str
    second: str
    tensors: list[TensorDifference]


class ExportedModel(TypedDict):
    """A servable model that was fetched."""

    training_id: str
    file: str
    path: str
    format: str
    size_bytes: int
    sha256: str
    largest_difference: float
    input_shapes: list[list[int]]
    checked: list[str]
    dynamic_batch: bool
    notes: list[str]


class StoredModel(TypedDict):
    """A stored model; its versions as they were written."""

    model_id: str
    site: str
    name: str
    aliases: dict[str, int]
    tags: list[str]
    description: str
    seen_at: float
    stale_since: float | None
    versions: list[dict[str, Any]]


class ShownVersion(TypedDict):
    """What belongs to a version's model."""

    site: str
    tags: list[str]
    aliases: dict[str, int]
    description: str
    versions: list[int]
    uses: list[str]
    damaged: NotRequired[list[str]]


class UpdatedModel(TypedDict):
    """What a model is called after an update."""

    aliases: dict[str, int]
    tags: list[str]


class DeletedModel(TypedDict):
    """A model, or the version of one, that was deleted; a dry run deletes nothing."""

    model: str
    site: str
    deleted: bool


class ModelDifference(TypedDict):
    """How two versions differ; empty lists where they don't."""

    first: str
    second: str
    files: list[dict[str, Any]]
    manifest: list[str]
    metrics: list[dict[str, Any]]
    origin: list[dict[str, str]]


class PulledModel(TypedDict):
    """A version that was downloaded."""

    model: str
    folder: str
    files: list[str]


class SearchCounts(TypedDict):
    """How far a search is."""

    trials: int
    ended: int
    running: int
    failed: int
    budget: int | None
    best: TrialRow | None
    waits: list[str]
    left: Left


class SearchDetails(TypedDict):
    """What is known of a search besides how far it is."""

    spec: dict[str, Any]
    importance: list[dict[str, Any]]
    best_over_time: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    brokers: list[dict[str, Any]]
    scheduler_problem: str


class SearchOverview(SearchCounts, SearchDetails):
    """All that a picture of a search shows."""


class SearchNews(TypedDict):
    """A change of a search: of its state, or a trial that has ended."""

    search: str
    event: Literal["state", "trial"]
    state: NotRequired[str]
    reason: NotRequired[str]
    trouble: NotRequired[str]
    overview: NotRequired[SearchOverview | None]
    trial: NotRequired[TrialRow]


class TrialDetails(TypedDict):
    """What is known of a trial besides its row."""

    is_best: bool
    reports: list[dict[str, Any]]
    runs: int | None
    log: list[Any]


class SearchExport(TypedDict):
    """A whole search."""

    search: str
    spec: dict[str, Any]
    trials: list[dict[str, Any]]


class Replay(TypedDict):
    """Whether a search tries the same again."""

    same: bool
    trials: int
    timings: int
    deterministic: bool
    differs: dict[str, Any] | None
