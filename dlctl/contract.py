"""The job directory: every file in it and every field, for both sides. Standard library only.

The login side and the nodes share no process and no socket, only this directory on the cluster's
shared file system (the paper's ZooKeeper tree; IBM Deep Learning Service, "Lifecycle Management").
Either side may crash at any moment. Every file is written whole (`write_whole`) or appended line
by line; every record carries a schema version.

All names are relative to the job directory `<root>/jobs/<training_id>/`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import tempfile
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

SCHEMA_VERSION = 1

# What was asked, decided and rendered ------------------------------------------------------------
MANIFEST = "manifest.yml"
"""The manifest as it runs: overrides applied, credentials replaced by references.

This one, `PLAN` and `SCRIPT` are the first attempt's; see `plan_file` for the later ones."""
PLAN = "plan.json"
"""A `Plan`."""
SCRIPT = "job.sbatch"
"""The batch script; its one argument is the attempt number."""
CODE = "code"
"""Exactly the files that the user sent."""
DATA = "data"
"""Links to the data stores: what DATA_DIR names."""
CONTROL = "control"
"""Requests, written by the login side and read by the nodes: one file per request."""
HALT_REQUEST = "control/halt"
CANCEL_REQUEST = "control/cancel"
CHECKPOINTS = "checkpoints"
METRICS = "metrics"
RESULTS = "results"
RESULTS_INDEX = "results.json"
"""A `ResultsIndex`, written after the last file of `results/`."""
LOGS = "logs"
"""LOG_DIR: whatever the user's program writes there."""
JOB_STATE = "state"
"""JOB_STATE_DIR: shared by the learners of the training, kept over attempts."""
WRITING = ".dlctl-writing."
"""What the name of a file begins with that is not yet whole, beside its place."""


def attempt_dir(attempt: int) -> str:
    """Return the directory of one attempt (the first is 1)."""
    return f"attempts/{attempt}"


def manifest_file(attempt: int) -> str:
    """Return the manifest that one attempt runs by."""
    return _of_attempt(attempt, MANIFEST)


def plan_file(attempt: int) -> str:
    """Return the `Plan` that one attempt runs by: a resumption may ask for other resources."""
    return _of_attempt(attempt, PLAN)


def script_file(attempt: int) -> str:
    """Return the batch script of one attempt."""
    return _of_attempt(attempt, SCRIPT)


def _of_attempt(attempt: int, name: str) -> str:
    """Return where a file of an attempt is; the first's lie at the top."""
    return name if attempt == 1 else f"{attempt_dir(attempt)}/{name}"


def submit_begin(attempt: int) -> str:
    """Return the receipt written just before the scheduler is asked; holds the token."""
    return f"{attempt_dir(attempt)}/submit.begin"


def submit_answer(attempt: int) -> str:
    """Return the receipt written just after: the scheduler's answer as it came.

    Line 1 is the exit code, line 2 the length of standard output in bytes; both outputs follow.
    """
    return f"{attempt_dir(attempt)}/submit.end"


def claim(attempt: int) -> str:
    """Return the file that the job script makes first (exclusively), holding its job id.

    A second job of the same attempt finds it and ends: an attempt never runs twice.
    """
    return f"{attempt_dir(attempt)}/job_id"


NOBODY = "nobody"
"""Held by a claim that dlctl made itself, so that no job ever runs that attempt."""


def job_output(attempt: int) -> str:
    """Return what the batch script and the supervisor print."""
    return f"{attempt_dir(attempt)}/slurm.out"


def learner_log(attempt: int, rank: int) -> str:
    """Return standard output and error of one learner."""
    return f"{attempt_dir(attempt)}/learner-{rank}.log"


def status_file(attempt: int, role: str, rank: int) -> str:
    """Return the `Status` of one process; role is `supervisor` or `learner`."""
    return f"{attempt_dir(attempt)}/status/{role}-{rank}.json"


def preflight_file(attempt: int, rank: int) -> str:
    """Return the `Preflight` report of one rank."""
    return f"{attempt_dir(attempt)}/preflight/{rank}.json"


def directive_file(attempt: int) -> str:
    """Return the supervisor's `Directive` to the watchdogs beside the learners."""
    return f"{attempt_dir(attempt)}/directive.json"


def verdict_file(attempt: int) -> str:
    """Return the `Verdict`: how the attempt ended."""
    return f"{attempt_dir(attempt)}/verdict.json"


def metrics_file(attempt: int, rank: int) -> str:
    """Return the JSON lines of one learner: `{"step", "epoch", "time", <name>: value, …}`."""
    return f"{METRICS}/{attempt}-{rank}.jsonl"


def token(training_id: str, attempt: int) -> str:
    """Return the job's name and comment: what finds a job whose submission lost its answer."""
    return f"{training_id}.{attempt}"


# Words -------------------------------------------------------------------------------------------


class State(str, enum.Enum):
    """What a user is told about a training (the service's words)."""

    QUEUED = "QUEUED"
    """Recorded by dlctl; the scheduler has not confirmed it."""
    PENDING = "PENDING"
    """In the scheduler's queue."""
    DEPLOYING = "DEPLOYING"
    """The job has started; the preflight runs."""
    DOWNLOADING = "DOWNLOADING"
    """Training data is being loaded."""
    TRAINING = "TRAINING"
    """The learners run (the paper's PROCESSING)."""
    STORING = "STORING"
    """Results are being stored."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    HALTED = "HALTED"
    """Stopped with a checkpoint: `dlctl resume` goes on."""
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Return whether nothing runs any more (a HALTED training may be resumed)."""
        return self in _FINAL

    def __str__(self) -> str:
        return self.value


_FINAL = {State.COMPLETED, State.FAILED, State.HALTED, State.CANCELLED}

# The plan ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """What the job asks for. Everything is decided here; nothing is computed again later."""

    learners: int
    nodes: int
    learners_per_node: list[int]
    """Learners on each node, in node order; sums to `learners`."""
    cpus_per_learner: int
    threads_per_learner: int
    gpus_per_learner: int
    memory_bytes_per_learner: int | None
    memory_bytes_per_node: int | None
    gpus_per_node: int
    time_s: int | None
    halt_margin_s: int
    """This long before the time limit the training is saved and halted."""


@dataclass(frozen=True)
class Batch:
    """What the scheduler is told beside the resources."""

    scheduler: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    """The whole GRES request of one node, GPUs included, in Slurm's words."""
    extra: list[str] = field(default_factory=list)
    """Further sbatch options, passed through as they are."""


@dataclass(frozen=True)
class Launch:
    """How N processes are started: `argv` goes before the program."""

    kind: str
    """`srun`, `mpirun` or `direct` (one learner, no MPI)."""
    argv: list[str]


@dataclass(frozen=True)
class Environment:
    """The node's Python and what has to happen before it."""

    python: str
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    """Shell lines of the site, run as they are."""
    container: list[str] = field(default_factory=list)
    """A prefix of every Python process, e.g. `apptainer exec image.sif`."""
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Framework:
    """What is trained: the user's program (`command`) or the built-in loop (`job`)."""

    name: str
    version: str | None
    command: str | None
    """Shell text, run once per learner in the code directory."""
    job: str | None
    """A Python file in the code directory that defines `build(arguments)`."""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return `command` or `job`."""
        return "command" if self.command is not None else "job"


@dataclass(frozen=True)
class LearningRateSchedule:
    """A factor on each optimizer learning rate, as a function of the step (or epoch)."""

    name: str = "constant"
    """`constant`, `step`, `exponential`, `cosine` or `linear`."""
    warmup_steps: int = 0
    """Linear warm-up from 0 over this many steps."""
    step_epochs: int = 1
    """`step`: multiply by `gamma` every so many epochs."""
    gamma: float = 0.1
    """`step`, `exponential`: the factor."""
    final_factor: float = 0.0
    """`cosine`, `linear`: the factor at the end of the last epoch."""


@dataclass(frozen=True)
class Training:
    """The built-in loop's settings."""

    epochs: int = 1
    batch_size: int = 32
    """Global: over all learners together."""
    seed: int = 0
    validate_every_epochs: int = 1
    log_every_steps: int = 10
    learning_rate_schedule: LearningRateSchedule = field(default_factory=LearningRateSchedule)
    clip_gradient_norm: float | None = None
    exchange: str = "auto"
    """How learners agree: `auto`, `shm`, `mpi`, `hierarchical` or `torch`."""
    average_every_steps: int = 1
    """1: gradients are averaged each step; N: the weights are, every N steps (local SGD)."""
    prefetch: str = "auto"
    """Whether the next batches are read while the model trains: `auto`, `on` or `off`."""


@dataclass(frozen=True)
class CheckpointPolicy:
    """When a checkpoint is taken, and how many are kept. At most one of `every_*` and `auto`."""

    every_steps: int | None = None
    every_epochs: int | None = None
    every_s: int | None = None
    keep: int = 2
    """This many of the newest."""
    keep_every_steps: int | None = None
    """The first one at each multiple of this, or after it, is kept for ever."""
    auto: bool = False
    """The interval follows from the measured cost of a checkpoint and `mtbf_s` (Young, Daly)."""
    mtbf_s: float | None = None
    """Mean time between failures of the whole job: the site's of one node, divided by `nodes`."""


@dataclass(frozen=True)
class DataStore:
    """A place where training data comes from or results go to, reachable on the node."""

    id: str
    type: str
    path: str | None = None
    """Directory on the node's file systems, for the types this version supports."""
    training_data: str | None = None
    """Directory below `path` that DATA_DIR names (`container` in the manifest)."""
    training_results: str | None = None
    """Directory below `path` that the results are copied to."""


@dataclass(frozen=True)
class Plan:
    """Everything that was decided, once, before the job is submitted. Written as plan.json."""

    training_id: str
    name: str
    version: str
    description: str
    site: str
    root: str
    job_dir: str
    runtime_dir: str
    code_digest: str
    created_at: str
    """UTC, ISO 8601."""
    dlctl_version: str
    resources: Resources
    batch: Batch
    launch: Launch
    environment: Environment
    framework: Framework
    training: Training
    checkpoint: CheckpointPolicy
    data_stores: list[DataStore] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    """The manifest's own environment variables for the learners. Never a secret."""
    secret_env: dict[str, str] = field(default_factory=dict)
    """Variable → reference (`env:NAME` or `file:PATH`), resolved on the node only."""
    evaluation_metrics: dict[str, Any] | None = None
    requirements: list[str] = field(default_factory=list)
    retries: int = 0
    not_in_this_version: list[str] = field(default_factory=list)
    """What the manifest asks for and this version of dlctl does not do, one sentence each."""
    schema_version: int = SCHEMA_VERSION


# Records -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """One process, seen by the watchdog beside it; rewritten at every heartbeat."""

    role: str
    rank: int
    attempt: int
    state: State
    reason: str = ""
    host: str = ""
    pid: int = 0
    started_at: float = 0.0
    heartbeat_at: float = 0.0
    """Unix seconds on the node's clock."""
    heartbeat_interval_s: float = 5.0
    step: int | None = None
    epoch: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    """The newest values; null is NaN or infinity, which JSON can't hold."""
    exit_code: int | None = None
    signal: int | None = None
    last_lines: list[str] = field(default_factory=list)
    """The end of the log, once the process has ended badly."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Preflight:
    """What one rank found before training."""

    rank: int
    host: str
    python: str
    launcher_size: int
    """The number of processes that the launcher (Slurm, mpirun) says it started."""
    mpi_size: int | None
    """MPI.COMM_WORLD.size, or None where no MPI is needed or importable."""
    mpi_rank: int | None
    mpi_library: str = ""
    port: int = 0
    """A free TCP port on this host; rank 0's becomes MASTER_PORT."""
    address: str = ""
    """This host's name as the other nodes resolve it; rank 0's becomes MASTER_ADDR."""
    problems: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Directive:
    """What the supervisor wants of the learners: `halt` or `stop`."""

    action: str
    reason: str
    issued_at: float
    grace_s: float
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Guilty:
    """The process that ended an attempt."""

    role: str
    rank: int
    host: str
    exit_code: int | None
    signal: int | None
    last_lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended; `state` is COMPLETED, FAILED, HALTED or CANCELLED."""

    attempt: int
    job_id: str
    state: State
    reason: str
    """One sentence: what was seen."""
    hint: str = ""
    """One sentence: what to do next."""
    guilty: Guilty | None = None
    finished_at: float = 0.0
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class ResultFile:
    """One file of the results."""

    path: str
    """Relative to `results/`."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class ResultsIndex:
    """Every file of `results/`, so that a download can be verified."""

    files: list[ResultFile]
    left_out: list[str] = field(default_factory=list)
    """What is no regular file (FIFO, socket), or a link to a folder, to nothing or outside."""
    schema_version: int = SCHEMA_VERSION


# Reading and writing -----------------------------------------------------------------------------

R = TypeVar("R")


class ContractError(ValueError):
    """A record in the job directory can't be understood."""


def to_json(record: Any) -> str:
    """Return a record as JSON text, one trailing newline."""
    text = json.dumps(dataclasses.asdict(record), indent=2, ensure_ascii=False) + "\n"
    # A file name that is no UTF-8 is a lone surrogate here: written as JSON's own escape.
    return text.encode("utf-8", "backslashreplace").decode()


def from_json(cls: type[R], text: str | bytes) -> R:
    """Return the record that `text` holds. Unknown fields (a newer writer) are ignored.

    Raises:
        ContractError: the text is not JSON, or a field is missing or of another type.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # of decoding, too
        raise ContractError(f"{cls.__name__}: not JSON: {error}") from error
    return typing.cast(R, _decode(cls, value, cls.__name__))


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _decode(next(a for a in args if a is not type(None)), value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), value, where)
    if origin is list and isinstance(value, list):
        return [_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise ContractError(f"{where}: {value!r} is no {kind.__name__}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is kind:  # JSON's true is no number
        return value
    raise ContractError(f"{where}: {value!r} is not of the type {kind}")


def _decode_record(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ContractError(f"{where}: {value!r} is no object")
    hints = typing.get_type_hints(cls)
    known: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        if item.name in value:
            known[item.name] = _decode(hints[item.name], value[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ContractError(f"{where}.{item.name} is missing")
    return cls(**known)


def write_whole(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Temporary file in the same folder, fsync, `os.replace`, fsync of the folder.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=WRITING, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_record(cls: type[R], path: Path) -> R | None:
    """Return the record in a file, or None if the file does not exist."""
    try:
        return from_json(cls, path.read_bytes())
    except FileNotFoundError:
        return None
