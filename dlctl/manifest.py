"""The manifest: what a person asks for. The paper's Listing 1, FfDL's dialect, and our own keys.

A `Manifest` is frozen and never holds a credential in a field: what looks like one was replaced by
a reference when it was read, and only `extract_secrets` gives the values out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    field_validator,
)

from dlctl import contract, manifest_secrets
from dlctl.errors import ManifestError
from dlctl.intervals import AUTO, parse_every, parse_steps
from dlctl.manifest_errors import dotted, named, place, sentences
from dlctl.manifest_lacks import can_not_run as can_not_run
from dlctl.manifest_lacks import has_loop
from dlctl.manifest_lacks import not_in_this_version as not_in_this_version
from dlctl.manifest_overrides import Overrides as Overrides
from dlctl.manifest_overrides import apply, put
from dlctl.manifest_parts import (
    MOUNTED_STORES,
    Checkpoint,
    Count,
    DataStore,
    Description,
    Duration,
    Framework,
    Free,
    Line,
    Name,
    Part,
    Real,
    Reference,
    SchedulerSettings,
    Size,
    Training,
    Value,
    inside_the_folder,
    whole_cpus,
)
from dlctl.manifest_server import ParameterServer, conflicts
from dlctl.units import parse_duration, parse_size
from dlctl.yaml_source import (
    Document,
    Trail,
    YamlError,
    load_bytes,
    load_file,
    parse_scalar,
)


def _requirement_lines(value: Any) -> Any:
    return [f"-r {inside_the_folder(value)}"] if isinstance(value, str) else value


Requirements = Annotated[
    list[Line],
    BeforeValidator(_requirement_lines),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]


_FILES: dict[str, Trail] = {
    "framework.job": ("framework", "job"),
    "framework.arguments.weights": ("framework", "arguments", "weights"),
    "requirements": ("requirements",),
}
"""Keys that name files of the folder."""


@dataclass(frozen=True)
class _Places:
    """Where the keys that name files stand, for messages; no part of what a manifest says."""

    by_key: dict[str, str] = field(default_factory=dict, compare=False)


class Manifest(Part):
    """One training, as asked for."""

    name: Name = Field(description="What the training is called.")
    version: Line | None = Field(None, description="Of your model; text, as written.")
    description: Description | None = Field(None, description="For people.")
    learners: Count = Field(1, ge=1, le=100_000, description="Processes that train together.")
    gpus: Count = Field(0, ge=0, le=1024, description="GPUs of each learner.")
    gpu_type: Line | None = Field(None, description="FfDL's GPU type.")
    cpus: Real | None = Field(None, gt=0, le=100_000, description="CPUs of each learner.")
    memory: Size | None = Field(None, description="Of each learner, as in 8GiB or 8000MiB.")
    storage: Size | None = Field(None, description="FfDL's scratch space; not used.")
    time: Duration | None = Field(None, description="Time limit, as in 4h or 1-00:00:00.")
    framework: Framework = Field(description="What is trained.")
    data_stores: list[DataStore] = Field(
        default_factory=list, description="Where data comes from and results go to."
    )
    training: Training = Field(
        default_factory=lambda: Training.model_validate({}), description="The built-in loop."
    )
    checkpoint: Checkpoint = Field(
        default_factory=lambda: Checkpoint.model_validate({}), description="When to save."
    )
    scheduler: SchedulerSettings = Field(
        default_factory=lambda: SchedulerSettings.model_validate({}),
        description="What Slurm is told beside the resources.",
    )
    env: dict[str, Value] = Field(
        default_factory=dict, description="Environment variables of the learners."
    )
    retries: Count = Field(0, ge=0, le=1000, description="Restarts after an infrastructure fault.")
    requirements: Requirements = Field(
        default_factory=list, description="pip requirements: a list, or the path of a file."
    )
    evaluation_metrics: Free | None = Field(None, description="FfDL's log parser.")
    parameter_server: ParameterServer | None = Field(
        None, description="How learners share parameters without waiting; else by allreduce."
    )
    _secrets: dict[str, str] = PrivateAttr(default_factory=dict)
    _places: _Places = PrivateAttr(default_factory=lambda: _Places())

    @field_validator("env")
    @classmethod
    def _variable_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, text in value.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name[:60]!r} is no name of a variable")
            if isinstance(text, str) and "\0" in text:
                raise ValueError(f"{name} holds a null character")
        return value

    @field_validator("data_stores")
    @classmethod
    def _ids_differ(cls, value: list[DataStore]) -> list[DataStore]:
        ids = [store.id for store in value]
        if len(set(ids)) != len(ids):
            raise ValueError(f"an id is there twice ({', '.join(ids)}); each must differ")
        return value

    @property
    def memory_bytes(self) -> int | None:
        """Memory of each learner."""
        return None if self.memory is None else parse_size(self.memory)

    @property
    def time_s(self) -> int | None:
        """Time limit."""
        return None if self.time is None else parse_duration(self.time)

    def cpus_per_learner(self) -> int:
        """Return whole CPUs: Slurm has no fractions, so 0.5 is one."""
        return whole_cpus(self.cpus or 1)

    def training_settings(self) -> contract.Training:
        """Return the built-in loop's settings for the plan."""
        values = self.training.model_dump()
        schedule = contract.LearningRateSchedule(**values.pop("learning_rate_schedule"))
        return contract.Training(**values, learning_rate_schedule=schedule)

    def checkpoint_policy(self) -> contract.CheckpointPolicy:
        """Return when to save, for the plan."""
        unit, count = parse_every(self.checkpoint.every)
        every: dict[str, Any] = {AUTO: True} if unit == AUTO else {f"every_{unit}": count}
        keep_every = self.checkpoint.keep_every
        return contract.CheckpointPolicy(
            **every,
            keep=self.checkpoint.keep,
            keep_every_steps=None if keep_every is None else parse_steps(keep_every),
        )

    def plan_stores(self) -> list[contract.DataStore]:
        """Return the data stores that are a directory on the nodes."""
        return [
            contract.DataStore(
                id=store.id,
                type=store.type,
                path=str(store.connection["path"]),
                training_data=store.training_data.container if store.training_data else None,
                training_results=store.training_results.container
                if store.training_results
                else None,
            )
            for store in self.data_stores
            if store.type in MOUNTED_STORES
        ]

    def plain_env(self) -> dict[str, str]:
        """Return the environment variables that are no credential."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}

    def secret_names(self) -> list[str]:
        """Return the environment variables whose value is a reference."""
        return [name for name, value in self.env.items() if isinstance(value, Reference)]

    def references(self) -> dict[str, Reference]:
        """Return every reference by name: a variable, or `data_stores.<position>.<key>`."""
        found = {name: v for name, v in self.env.items() if isinstance(v, Reference)}
        for position, store in enumerate(self.data_stores):
            for key, value in store.connection.items():
                if isinstance(value, Reference):
                    found[f"data_stores.{position}.{key}"] = value
        return found

    def extract_secrets(self) -> tuple[Manifest, dict[str, str]]:
        """Return the manifest with references only, and reference name → value."""
        copy = self.model_copy()
        copy._secrets = {}
        return copy, dict(self._secrets)

    def to_yaml(self) -> str:
        """Return the manifest as it runs: overrides applied, credentials as references."""
        data = self.model_dump(mode="json", exclude_unset=True)
        text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
        return str(text)


class _Dumper(yaml.SafeDumper):
    """Quote what our loader would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(parse_scalar(text), str) else "'"
    if not text.isprintable():
        style = '"'  # the other styles lose U+0085 and its like
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def load_manifest(path: Path, overrides: Overrides | None = None) -> Manifest:
    """Return the manifest in a file.

    Raises:
        ManifestError: with every problem, a line each.
    """
    return _from_yaml(lambda: load_file(path), overrides)


def parse_manifest(data: bytes, name: str, overrides: Overrides | None = None) -> Manifest:
    """Return the manifest that `data` holds; `name` stands in messages.

    Raises:
        ManifestError: with every problem, a line each.
    """
    return _from_yaml(lambda: load_bytes(data, name), overrides)


def _from_yaml(load: Callable[[], Document], overrides: Overrides | None) -> Manifest:
    try:
        document = load()
    except YamlError as error:
        raise _error(error.problems) from error
    if not isinstance(document.data, dict):
        raise _error([f"{document.where(())}: keys with values are allowed, as in 'name: mine'"])
    problems = _lower_top_keys(document)
    options = apply(document.data, overrides or Overrides(), problems)
    secrets = manifest_secrets.extract(document.data)
    for trail, what in manifest_secrets.stray(document.data):
        problems.append(f"{place(document, trail, options)}: {dotted(trail)}: {what}")
        put(document.data, trail, "(hidden)")  # what else is wrong there must not show it
    try:
        manifest = Manifest.model_validate(document.data)
    except ValidationError as error:
        # No chain: pydantic's error holds the input.
        problems += sentences(error, Manifest, document, options)
        raise _error(problems) from None
    for trail, what in sorted(conflicts(manifest), key=lambda found: document.order(found[0])):
        problems.append(f"{named(place(document, trail, options, key=True), trail)}: {what}")
    if problems:
        raise _error(problems)
    manifest._secrets = secrets
    manifest._places = _Places({key: place(document, t, options) for key, t in _FILES.items()})
    return manifest


def check_files(manifest: Manifest, folder: Path) -> None:
    """Check that the files exist that the manifest names and this version reads.

    Raises:
        ManifestError: with every file that is missing, a line each.
    """
    problems = []
    for key, name in named_files(manifest):
        path = folder / name
        if not path.is_file():
            seen = "is no file" if path.exists() else "does not exist"
            where = manifest._places.by_key.get(key, "manifest")
            problems.append(f"{where}: {key}: {name} {seen} in {folder}")
    if problems:
        hint = "the path is relative to the manifest's folder, which is what is sent"
        raise ManifestError("\n".join(problems), problems=problems, hint=hint)


def named_files(manifest: Manifest) -> list[tuple[str, str]]:
    """Return key and path of each file that has to be in the manifest's folder."""
    framework, found = manifest.framework, []
    if framework.job is not None and has_loop(manifest):
        found.append(("framework.job", framework.job))
        weights = framework.arguments.get("weights")
        in_store = any(store.training_data for store in manifest.data_stores)
        if weights is not None and not in_store:  # else it may be a file of DATA_DIR
            found.append(("framework.arguments.weights", str(weights)))
    for line in manifest.requirements:
        option, _, path = line.strip().partition(" ")
        if option == "-r" and path.strip():
            found.append(("requirements", path.strip()))
    return found


def _error(problems: list[str]) -> ManifestError:
    return ManifestError("\n".join(problems), problems=problems)


def _lower_top_keys(document: Document) -> list[str]:
    """Accept `Learners` for `learners`, as FfDL's reader does."""
    problems, lowered = [], {}
    for key, value in document.data.items():
        lower = key.lower() if key.lower() in Manifest.model_fields else key
        if lower in lowered:
            where = document.where((key,), key=True)
            problems.append(f"{where}: {key}: is there twice, in another case; one is allowed")
            continue
        lowered[lower] = value
        for marks in (document.key_marks, document.value_marks):
            for trail in [trail for trail in marks if trail[:1] == (key,) and key != lower]:
                marks[(lower,) + trail[1:]] = marks[trail]
    document.data = lowered
    return problems


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a manifest, for editors."""
    schema = _with_bounds(Manifest.model_json_schema(mode="validation"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dlctl manifest",
        **{key: value for key, value in schema.items() if key != "title"},
    }


_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _with_bounds(schema: Any) -> Any:
    """Say bounds in JSON Schema's words: within `anyOf` pydantic 2 leaves them in its own."""
    if isinstance(schema, list):
        return [_with_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    known = {key: _with_bounds(value) for key, value in schema.items()}
    if "type" not in known:
        return known
    return {_BOUNDS.get(key, key): value for key, value in known.items()}
