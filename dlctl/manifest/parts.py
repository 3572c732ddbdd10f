"""The parts of a manifest below its top level: validated, frozen models, each key described."""

from __future__ import annotations

import math
import posixpath
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dlctl.contract import CACHES, MODEL_PREFIX
from dlctl.contract.stores import MOUNTED_STORES
from dlctl.manifest.intervals import parse_every, parse_steps
from dlctl.scheduler.sbatch import refusal
from dlctl.units import parse_duration, parse_size
from dlctl.yaml_source import FloatText, IntText, plain

_NUMBER_OR_TEXT = {"type": ["string", "number"]}


def as_written(value: Any) -> Any:
    """Return a number as the text that stands in the file; refuse a boolean."""
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f"{word} is a boolean here; quote it ('{word}') to make it text")
    if isinstance(value, (IntText, FloatText)):
        return value.text
    return str(value) if isinstance(value, (int, float)) else value


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is a boolean; a number is allowed")
    return value


def _one_line(value: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise ValueError("one line without control characters is allowed")
    return value


def _no_null(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a null character, which no program can be given; remove it")
    return value


def inside_the_folder(value: str) -> str:
    """Return a relative path that stays inside the folder, or raise ValueError."""
    normal = posixpath.normpath(value)
    if "\0" in value or not value or value.startswith(("/", "~")) or normal.startswith(".."):
        raise ValueError(f"{value!r} leaves the folder; a relative path inside it is allowed")
    return value


def checked(parse: Any) -> Any:
    """Return what validates a text by parsing it, and keeps it as it was written."""

    def check(value: str) -> str:
        parse(value)
        return value

    return AfterValidator(check)


Text = Annotated[
    str, BeforeValidator(as_written), AfterValidator(_no_null), WithJsonSchema(_NUMBER_OR_TEXT)
]
Line = Annotated[
    str,
    BeforeValidator(as_written),
    AfterValidator(_one_line),
    Field(min_length=1),
    WithJsonSchema({**_NUMBER_OR_TEXT, "minLength": 1}),
]
InsidePath = Annotated[Line, AfterValidator(inside_the_folder)]


def _no_option_of_ours(value: str) -> str:
    if not value.startswith("-") or not value.strip("-"):
        raise ValueError(f"{value!r} is not an option; one such as '--nice=100' is allowed")
    if why_not := refusal(value):
        raise ValueError(why_not)
    return value


SbatchOption = Annotated[Line, AfterValidator(_no_option_of_ours)]


def _at_most(length: int) -> AfterValidator:
    def check(value: str) -> str:
        if len(value) > length:
            raise ValueError(f"is {len(value):,} characters long; at most {length:,} are allowed")
        return value

    return AfterValidator(check)


Name = Annotated[
    Line, _at_most(200), WithJsonSchema({**_NUMBER_OR_TEXT, "minLength": 1, "maxLength": 200})
]
Description = Annotated[
    Text, _at_most(10_000), WithJsonSchema({**_NUMBER_OR_TEXT, "maxLength": 10_000})
]
Size = Annotated[
    str, BeforeValidator(as_written), checked(parse_size), WithJsonSchema({"type": "string"})
]
Duration = Annotated[
    str, BeforeValidator(as_written), checked(parse_duration), WithJsonSchema({"type": "string"})
]
Count = Annotated[int, BeforeValidator(_no_boolean)]
Real = Annotated[float, BeforeValidator(_no_boolean), AllowInfNan(False)]
"""Finite: the plan is JSON, which has no other numbers."""
Fraction = Annotated[Real, AfterValidator(lambda n: int(n) if n.is_integer() else n)]
"""A number of things that some sites can divide; a whole one is an int."""
Free = Annotated[dict[str, Any], BeforeValidator(plain)]


class Section(BaseModel):
    """A part of the manifest: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def section(kind: type[Section], description: str) -> Any:
    """Return a section that need not be there: then it has its defaults."""
    return Field(default_factory=lambda: kind.model_validate({}), description=description)


class Reference(Section):
    """A credential that is kept elsewhere. Exactly one key is set."""

    from_env: Line | None = Field(None, description="A variable of your shell at submission.")
    from_file: Line | None = Field(None, description="A file on your machine.")
    from_profile: Line | None = Field(
        None, description="A profile of ~/.aws/credentials, for user_name and password."
    )
    from_keyring: Line | None = Field(
        None, description="SERVICE/USER in your keyring; needs the package keyring."
    )
    from_secret: Line | None = Field(
        None, description="Written by dlctl in place of a credential in the manifest."
    )

    @model_validator(mode="after")
    def _one_is_set(self) -> Reference:
        ways = (self.from_env, self.from_file, self.from_profile, self.from_keyring)
        if len([value for value in (*ways, self.from_secret) if value]) != 1:
            raise ValueError(
                "one of {from_env: NAME}, {from_file: PATH}, {from_profile: NAME} and "
                "{from_keyring: SERVICE/USER} is allowed"
            )
        return self


def _kind(value: Any) -> str:
    return "reference" if isinstance(value, (dict, Reference)) else "text"


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name[:60]!r} is not a valid variable name")
    return name


VariableName = Annotated[str, AfterValidator(_variable_name)]
Value = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Reference, Tag("reference")], Discriminator(_kind)
]


class FrameworkSection(Section, title="Framework"):
    """The framework, the program and the model to train."""

    name: Line = Field(
        "custom", description="One of `dlctl frameworks list`; with `command` any, or none."
    )
    version: Line | None = Field(
        None, description="Selects one of the site's environments; else for people."
    )
    image_tag: Line | None = Field(None, description="FfDL's image; selects like `version`.")
    command: Text | None = Field(
        None, min_length=1, description="Shell text, run once per learner in the code folder."
    )
    job: InsidePath | None = Field(
        None,
        description="A file in the folder, such as train.py; for pytorch it has build(arguments).",
    )
    arguments: Free = Field(
        default_factory=dict,
        description="What the job gets: build(arguments), or options of its command line; "
        "`weights` names a file to start from, or a stored model: model:ID@best.",
    )

    @field_validator("arguments")
    @classmethod
    def _weights_stay_inside(cls, value: dict[str, Any]) -> dict[str, Any]:
        weights = value.get("weights")
        if weights is not None:
            if not isinstance(weights, str):
                raise ValueError("weights is not a path; a relative path is allowed")
            inside_the_folder(weights)
        return value

    @model_validator(mode="after")
    def _command_or_job(self) -> FrameworkSection:
        if (self.command is None) == (self.job is None):
            which, verb = ("neither", "is") if self.command is None else ("both", "are")
            empty = self.model_fields_set & {"command", "job"} if self.command is None else ()
            raise PydanticCustomError(
                "contradiction",
                f"{which} of 'command' and 'job' {verb} set; exactly one is allowed",
                {"key": min(empty, default=None)},
            )
        if self.command is not None and self.arguments.keys() - {"weights"}:
            raise PydanticCustomError(
                "contradiction",
                "a command gets no arguments: write them into it, and what a sweep varies as a "
                "variable, such as `--lr $LR` with env.LR",
                {"key": "arguments"},
            )
        if self.job is not None and "name" not in self.model_fields_set:
            raise PydanticCustomError(
                "contradiction", "is missing: it says how the job is run", {"key": "name"}
            )
        return self

    @property
    def stored_weights(self) -> str | None:
        """The stored model that `weights` names, as `model:ID@best`; None if it names a file."""
        named = str(self.arguments.get("weights") or "")
        return named if named.startswith(MODEL_PREFIX) else None


class Container(Section):
    """A place in a data store."""

    container: Line = Field(description="A bucket, or a directory below connection.path.")


class ResultsContainer(Container):
    """Where results go in a data store."""

    checkpoints: bool = Field(
        False, description="Whether the checkpoints go there, too; not into mounted directories."
    )


class DataStoreSection(Section, title="DataStore"):
    """Where training data comes from and where results go."""

    id: Line = Field(description="A name that you choose.")
    type: Line = Field(description="Which kind of store: a name in `dlctl stores list`.")
    training_data: Container | None = Field(None, description="What DATA_DIR names.")
    training_results: ResultsContainer | None = Field(
        None, description="Where results are copied to."
    )
    connection: dict[str, Value] = Field(
        default_factory=dict, description="How to reach it; for a mounted store `path`."
    )

    @model_validator(mode="after")
    def _a_mount_has_a_path(self) -> DataStoreSection:
        if self.type not in MOUNTED_STORES:
            return self
        path = self.connection.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            raise ValueError(f"a {self.type} needs connection.path, an absolute path on the nodes")
        for place in (self.training_data, self.training_results):
            if place is not None:
                inside_the_folder(place.container)
        return self


class ScheduleSection(Section, title="Schedule"):
    """The schedule of the learning rate."""

    name: Literal["constant", "step", "exponential", "cosine", "linear"] = Field(
        "constant", description="The shape."
    )
    warmup_steps: Count = Field(0, ge=0, description="Linear warm-up from 0 over this many steps.")
    step_epochs: Count = Field(
        1, ge=1, description="step: multiply by gamma every this many epochs."
    )
    gamma: Real = Field(0.1, gt=0, le=1, description="step, exponential: the factor.")
    final_factor: Real = Field(0.0, ge=0, description="cosine, linear: the factor at the end.")


class TrainingSection(Section, title="Training"):
    """The built-in loop's settings."""

    epochs: Count = Field(1, ge=1, description="Passes over the training data.")
    batch_size: Count = Field(
        32, ge=1, description="Samples of a batch, over all learners together."
    )
    seed: Count = Field(0, ge=0, le=2**63 - 1, description="Seed of every random generator.")
    validate_every_epochs: Count = Field(1, ge=1, description="Epochs between validations.")
    log_every_steps: Count = Field(10, ge=1, description="Steps between lines of metrics.")
    classes: Count | None = Field(
        None, ge=2, description="Classes that the model chooses among, to compare with guessing."
    )
    learning_rate_schedule: ScheduleSection = section(
        ScheduleSection, "How the learning rate changes."
    )
    clip_gradient_norm: Real | None = Field(
        None, gt=0, description="The largest norm of all gradients together."
    )
    exchange: Literal["auto", "shm", "mpi", "hierarchical", "torch"] = Field(
        "auto", description="How learners agree; auto finds the fastest that the nodes allow."
    )
    average_every_steps: Count = Field(
        1,
        ge=1,
        description="1: exchange gradients at each step; N: weights, every N steps (local SGD).",
    )
    prefetch: Literal["auto", "on", "off"] = Field(
        "auto", description="Whether to read the next batches while the model trains."
    )


class CheckpointSection(Section, title="Checkpoint"):
    """When checkpoints are taken and how many are kept."""

    every: Annotated[Line, checked(parse_every)] = Field(
        "1 epoch", description="`auto`, `10 steps`, `1 epoch`, or a time such as `5m`."
    )
    keep: Count = Field(2, ge=2, description="How many of the newest are kept; at least 2.")
    keep_every: Annotated[Line, checked(parse_steps)] | None = Field(
        None, description="`1000 steps`: checkpoints at every so many steps are kept forever."
    )
    files: InsidePath | None = Field(
        None, description="Your program's own checkpoints, as in 'ckpt-*': files or folders of "
        "CHECKPOINT_DIR; the last number of a name is the step.",
    )  # fmt: skip


class OutputSection(Section, title="Output"):
    """Files that a program writes into its own folder, and that are kept as results are."""

    caches: list[Line] = Field(
        default_factory=lambda: list(CACHES),
        description="What is no output: names of files and folders at any depth, or paths from the "
        "program's folder, as patterns of the shell; replaces the default.",
    )


class SchedulerSection(Section, title="SchedulerSettings"):
    """Further settings for Slurm, besides the resources."""

    partition: Line | None = Field(None, description="Default: the site's, else one that fits.")
    account: Line | None = Field(None, description="Default: the site's.")
    qos: Line | None = Field(None, description="Default: the site's.")
    constraint: Line | None = Field(None, description="Features of nodes.")
    gres: Line | None = Field(None, description="Further GRES; GPUs come from `gpus`.")
    extra: list[SbatchOption] = Field(default_factory=list, description="Further sbatch options.")


def whole_cpus(cpus: float) -> int:
    """Return the CPUs that Slurm is asked for: it has no fractions."""
    return max(1, math.ceil(cpus))
