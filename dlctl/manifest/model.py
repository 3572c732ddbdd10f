"""The manifest as a model: the paper's Listing 1, FfDL's dialect, and our own keys.

A `Manifest` is frozen and never holds a credential in a field: loading replaces
whatever looks like one by a reference, and only `extract_secrets` returns the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dlctl.contract.stores import MOUNTED_STORES
from dlctl.manifest.evaluation_metrics import EvaluationMetricsSection
from dlctl.manifest.parameter_server import ParameterServerSection
from dlctl.manifest.parts import (
    CheckpointSection,
    Count,
    DataStoreSection,
    Description,
    Duration,
    Fraction,
    FrameworkSection,
    Line,
    Name,
    OutputSection,
    Real,
    Reference,
    SchedulerSection,
    Section,
    Size,
    TrainingSection,
    Value,
    VariableName,
    inside_the_folder,
    section,
    whole_cpus,
)
from dlctl.manifest.running import HangSection, NotifySection, RetrySection, StopSection
from dlctl.units import parse_duration, parse_size
from dlctl.yaml_source import parse_scalar


def _requirement_lines(value: Any) -> Any:
    return [f"-r {inside_the_folder(value)}"] if isinstance(value, str) else value


Requirements = Annotated[
    list[Line],
    BeforeValidator(_requirement_lines),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]


MOST_LEARNERS = 100_000

LATER = (
    "framework.name", "framework.job", "framework.command", "framework.arguments.weights",
    "requirements", "evaluation_metrics.parser",
)  # fmt: skip
"""Keys that are checked later, with the manifest's folder at hand."""


@dataclass(frozen=True)
class Places:
    """Where keys of `LATER` stand: for messages, not part of the manifest's content."""

    by_key: dict[str, str] = field(default_factory=dict, compare=False)


class Manifest(Section):
    """One training, as asked for."""

    name: Name = Field(description="The training's name: one line, at most 200 characters.")
    version: Line | None = Field(None, description="The version of your model; text, as written.")
    description: Description | None = Field(None, description="A description for people.")
    learners: Count = Field(1, ge=1, le=MOST_LEARNERS, description="Processes that train together.")
    nodes: Count | None = Field(
        None,
        ge=1,
        le=MOST_LEARNERS,
        description="Nodes, each with equally many learners; default: as few as have room.",
    )
    learners_per_node: Count | None = Field(
        None,
        ge=1,
        le=MOST_LEARNERS,
        description="Learners on each node; default: as many as have room.",
    )
    gpus: Fraction = Field(
        0, ge=0, le=1024, description="GPUs of each learner; fractions are rounded up."
    )
    gpu_type: Line | None = Field(None, description="FfDL's GPU type; not used.")
    cpus: Real | None = Field(
        None,
        gt=0,
        le=100_000,
        description="CPUs of each learner; fractions are rounded up; default: 1.",
    )
    memory: Size | None = Field(
        None, description="Memory of each learner, as in 8GiB or 8000MiB; default: the site's."
    )
    storage: Size | None = Field(None, description="FfDL's scratch space; not used.")
    time: Duration | None = Field(
        None, description="Time of the whole training, as in 4h or 1-00:00:00; default: the site's."
    )
    framework: FrameworkSection = Field(description="What is trained.")
    data_stores: list[DataStoreSection] = Field(
        default_factory=list, description="Where data comes from and where results go."
    )
    training: TrainingSection = section(TrainingSection, "The built-in loop.")
    checkpoint: CheckpointSection = section(CheckpointSection, "When to save.")
    output: OutputSection = section(OutputSection, "What the program writes into its own folder.")
    scheduler: SchedulerSection = section(
        SchedulerSection, "Further settings for Slurm, besides the resources."
    )
    env: dict[VariableName, Value] = Field(
        default_factory=dict, description="Environment variables of the learners."
    )
    retries: Count | None = Field(
        None,
        ge=0,
        le=1000,
        description="How many faults of the infrastructure are retried, counted from the end of the"
        " last job that came to its limit; default: 3 if there is a checkpoint, else 0.",
    )
    retry: RetrySection = section(
        RetrySection, "How the next attempt differs from the one that failed."
    )
    stop: StopSection | None = Field(None, description="Guards that end the training.")
    hang: HangSection = section(HangSection, "When learners that make no step are taken for hung.")
    notify: NotifySection | None = Field(None, description="Notices to people.")
    requirements: Requirements = Field(
        default_factory=list, description="pip requirements: a list, or the path of a file."
    )
    evaluation_metrics: EvaluationMetricsSection | None = Field(
        None, description="How the program's output becomes metrics."
    )
    parameter_server: ParameterServerSection | None = Field(
        None, description="How learners share parameters without waiting; without it, by allreduce."
    )
    _secrets: dict[str, str] = PrivateAttr(default_factory=dict)
    _places: Places = PrivateAttr(default_factory=Places)

    @field_validator("data_stores")
    @classmethod
    def _ids_differ(cls, value: list[DataStoreSection]) -> list[DataStoreSection]:
        ids = [store.id for store in value]
        if len(set(ids)) != len(ids):
            raise ValueError(f"an id appears twice ({', '.join(ids)}); ids must differ")
        return value

    @model_validator(mode="after")
    def _learners_of_nodes(self) -> Manifest:
        """Set `learners` if it follows; it stays unset, so that another number of nodes counts."""
        if "learners" not in self.model_fields_set:
            self.__dict__["learners"] = (self.nodes or 1) * (self.learners_per_node or 1)
        return self

    @property
    def fixed_per_node(self) -> int | None:
        """Learners on each node, if the manifest decides that."""
        if self.nodes is not None:
            return self.learners // self.nodes
        return self.learners_per_node

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

    def gpus_per_learner(self) -> int:
        """Return whole GPUs: Slurm has no fractions, so 0.5 is one."""
        return math.ceil(self.gpus)

    def secret_names(self) -> list[str]:
        """Return the environment variables whose value is a reference."""
        return [name for name, value in self.env.items() if isinstance(value, Reference)]

    def sent_names(self) -> list[str]:
        """Return the names of the references whose values go to the site."""
        notices = list(self.notify.references() if self.notify else ())
        stores = [
            f"data_stores.{position}.{key}"
            for position, keys in self.store_secrets().items()
            for key in keys
        ]
        return [*self.secret_names(), *notices, *stores]

    def store_secrets(self) -> dict[int, list[str]]:
        """Return, for each store with scripts, the keys of `connection` that are references."""
        return {
            position: [k for k, v in store.connection.items() if isinstance(v, Reference)]
            for position, store in enumerate(self.data_stores)
            if store.type not in MOUNTED_STORES
        }

    def references(self) -> dict[str, Reference]:
        """Return every reference by name.

        A name is a variable, `notify.<key>` or `data_stores.<position>.<key>`.
        """
        found = {name: v for name, v in self.env.items() if isinstance(v, Reference)}
        found |= self.notify.references() if self.notify else {}
        for position, store in enumerate(self.data_stores):
            for key, value in store.connection.items():
                if isinstance(value, Reference):
                    found[f"data_stores.{position}.{key}"] = value
        return found

    def extract_secrets(self) -> tuple[Manifest, dict[str, str]]:
        """Return the manifest without credentials, and reference name → credential."""
        copy = self.model_copy()
        copy._secrets = {}
        return copy, dict(self._secrets)

    def to_yaml(self) -> str:
        """Return the manifest as it runs: overrides applied, credentials as references."""
        data = self.model_dump(mode="json", exclude_unset=True)
        text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
        return str(text)


class _Dumper(cast(Any, getattr(yaml, "CSafeDumper", yaml.SafeDumper))):  # type: ignore[misc]
    """Quote what our loader would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(parse_scalar(text), str) else "'"
    if not text.isprintable():
        style = '"'  # the other styles lose U+0085 and its like
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


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
    """Rename bounds to JSON Schema's keywords: pydantic 2 keeps its own within `anyOf`."""
    if isinstance(schema, list):
        return [_with_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    known = {key: _with_bounds(value) for key, value in schema.items()}
    if "type" not in known:
        return known
    return {_BOUNDS.get(key, key): value for key, value in known.items()}
