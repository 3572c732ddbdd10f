"""The plan: everything that is decided before a job is submitted."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from dlctl.contract.control import StopRules
from dlctl.contract.lifecycle import HangPolicy, Lifecycle
from dlctl.contract.names import CACHES
from dlctl.contract.notices import Notify
from dlctl.contract.records import SCHEMA_VERSION
from dlctl.contract.rehearsal import Rehearsal
from dlctl.contract.sent_files import LeftOut


@dataclass(frozen=True)
class Resources:
    """The resources that the job asks for. All are decided here; nothing is computed later."""

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
    """How long before the time limit the training is saved and halted."""
    first_ranks: list[int] = field(default_factory=list)
    """The rank of the first learner of each node: learners are placed in blocks."""

    def node_of(self, rank: int) -> tuple[int, int]:
        """Return the node of a rank, and the first rank there."""
        node = max(0, bisect_right(self.first_ranks, rank) - 1)
        return node, self.first_ranks[node]


@dataclass(frozen=True)
class Batch:
    """What the plan asks of the scheduler beside the resources."""

    scheduler: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    """The whole GRES request of one node, GPUs included, in Slurm's words."""
    extra: list[str] = field(default_factory=list)
    """Further sbatch options, passed through as they are."""
    exclude: list[str] = field(default_factory=list)
    """Hosts on which this attempt must not run."""


@dataclass(frozen=True)
class Launch:
    """How N processes are started: `argv` goes before the program."""

    kind: str
    """The launcher: a name in `dlctl.contract.launchers`."""
    argv: list[str]
    step_per_learner: bool = False
    """With a parameter server every learner is a job step of its own, and shares no MPI world with
    the others."""


@dataclass(frozen=True)
class Environment:
    """The node's Python, and the set-up that it needs."""

    python: str
    """With `requirements` that of an environment of their own, which also sees the site's packages.
    """
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    """Shell lines of the site, run as they are."""
    container: list[str] = field(default_factory=list)
    """A prefix of every Python process, e.g. `apptainer exec image.sif`."""
    variables: dict[str, str] = field(default_factory=dict)
    site_python: str | None = None
    """The site's own Python, if `python` is not: it made the environment."""
    name: str = ""
    """Which of the site's `environments` this is; empty: its own `environment`."""


@dataclass(frozen=True)
class Recipe:
    """How the learners of a framework run: what its folder says, decided at submission."""

    origin: str
    """The folder's name, and where it was found: `package`, `user` or `folder`."""
    script: str
    """The text of train.sh; empty if the built-in loop runs wherever the job does."""
    loop: bool = False
    """Whether the built-in loop trains what `job` names."""
    loop_unless: str | None = None
    """A program that trains in place of the built-in loop on nodes that have it."""
    signal: str = "USR2"
    """The signal that makes a learner save and end, without SIG."""
    modules: list[str] = field(default_factory=list)
    """The Python modules that a node must have."""
    install: str = ""
    """The packages for pip that bring them."""
    addresses: bool = False
    """Whether a learner gets LEARNER_ADDRESSES, `host:port` of each learner."""
    fixed_paths: list[str] = field(default_factory=list)
    """The paths of the service's containers that the program names, and train.sh shows it."""
    searched: list[str] = field(default_factory=list)
    """In a trial: the arguments whose options are DLCTL_OPTIONS, rather than train.sh's text."""


@dataclass(frozen=True)
class Framework:
    """The program that trains: the user's (`command`), or what the framework does with `job`."""

    name: str
    version: str | None
    command: str | None
    """Shell text, run once per learner in the code directory."""
    job: str | None
    """A file in the code directory; for the built-in loop it defines `build(arguments)`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    """None in plans of older versions."""

    @property
    def has_loop(self) -> bool:
        """Return whether the built-in loop trains, at least on nodes without another program."""
        return self.job is not None and (self.recipe is None or self.recipe.loop)

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
    """`step`: multiply by `gamma` every this many epochs."""
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
    steps: int | None = None
    """After how many steps the training ends, if the epochs have more."""
    classes: int | None = None
    """Among how many classes the model chooses: what guessing would achieve."""
    settings_of_build: bool = False
    """Whether a training that goes on from a checkpoint takes the optimizer's settings (learning
    rate, momentum and others) from `build`; by default it keeps those of the checkpoint."""


@dataclass(frozen=True)
class CheckpointPolicy:
    """When a checkpoint is taken, and how many are kept. At most one of `every_*` and `auto`."""

    every_steps: int | None = None
    every_epochs: int | None = None
    every_s: int | None = None
    keep: int = 2
    """How many of the newest checkpoints stay."""
    keep_every_steps: int | None = None
    """The first checkpoint at or after each multiple of this is kept forever."""
    auto: bool = False
    """The interval follows from the measured cost of a checkpoint and `mtbf_s` (Young, Daly)."""
    mtbf_s: float | None = None
    """Mean time between failures of the whole job: the site's of one node, divided by the number of
    those whose loss ends it."""
    files: str | None = None
    """Which files or folders of CHECKPOINT_DIR are a program's checkpoints: a pattern whose last
    number is the step. None: those of the built-in loop."""


ELASTICITY = 0.9
"""β = p·α, of p learners: Zhang, Choromanska, LeCun, 2015, section 5.1."""
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""DiLoCo's: Douillard et al., 2023, section 3.1."""


@dataclass(frozen=True)
class ParameterServer:
    """How learners share their parameters; None in a plan without one, and for one learner."""

    solver: str
    """`parallel_sgd`, `downpour_sgd`, `elastic_averaging`, `model_averaging`, `diloco`, or `own`:
    the one that `build` returns."""
    shard_nodes: list[int]
    """For each shard the number of the node that is its home; the same partition everywhere."""
    argv: list[str] = field(default_factory=list)
    """The command in front of one node's server."""
    push_every: int = 1
    """A learner's batches between pushes: also the size of a chunk of the global cursor."""
    pull_every: int = 1
    """Batches between pulls, a multiple of `push_every`."""
    staleness: int | None = None
    """How many pushes a learner may be ahead of the slowest; None: any number. 0: all wait."""
    min_learners: int = 1
    """With fewer learners than this, the training ends."""
    network: str | None = None
    """An interface, or a range like 10.1.0.0/16; None: the address of the host's name."""
    learning_rate: float | None = None
    """Learning rate of the server's steps; None: the optimizer's. diloco: the outer rate."""
    momentum: float | None = None
    """Momentum of the server's steps."""
    adagrad: bool = False
    """downpour_sgd: the server's steps have a rate for each parameter."""
    moving_rate: float | None = None
    """elastic_averaging: α; None: 0.9 divided by the number of learners."""
    timeout_s: float = 120.0
    """How long learners wait for servers, and at the start for other learners."""
    snapshot_every_s: float = 60.0
    batch_samples: int = 0
    """Samples of one learner's batch in the built-in loop."""
    rejoin_argv: list[list[str]] = field(default_factory=list)
    """For each node the command in front of a learner that is restarted there: its step shares
    CPUs, and all of the job's GPUs on the node, with other steps."""


@dataclass(frozen=True)
class DataStore:
    """A place where training data comes from or results go to, reachable on the node."""

    id: str
    type: str
    path: str | None = None
    """Directory on the nodes' file systems, of a mounted store."""
    training_data: str | None = None
    """Directory below `path` that DATA_DIR names (`container` in the manifest)."""
    training_results: str | None = None
    """Directory below `path` that the results are copied to."""
    connection: dict[str, str] = field(default_factory=dict)
    """The manifest's `connection`, without its credentials, with the defaults of its type."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Key of `connection` → reference (`file:PATH`), resolved on the node only."""
    position: int = -1
    """The store's place in the manifest's list, from 0; -1 in older plans."""
    scripts: list[str] = field(default_factory=list)
    """Which scripts the store has in the job directory: `load`, `store`; a mounted one has none."""
    needs: list[str] = field(default_factory=list)
    """Python packages without which the node can't run the scripts."""
    via: str = "node"
    """Who moves the data: the job's `node`, or outside the job the `login` node or the `laptop`."""
    uses: str = ""
    """The implementation of its type; empty: the type's scripts are its own."""
    takes_checkpoints: bool = False
    """Whether the checkpoints go to the store with the results."""
    cache_limit_bytes: int | None = None
    """How much the cache of the site may take; None: as much as there is room."""


@dataclass(frozen=True)
class GitState:
    """What git said about the user's folder when it was sent."""

    commit: str
    branch: str = ""
    """Empty if no branch was checked out."""
    dirty: bool = False
    """Whether the folder differed from the commit."""


@dataclass(frozen=True)
class StoredWeights:
    """A file of a stored model, from which a training starts."""

    model: str
    """The version, as `ID@N`."""
    path: str
    """The file's path in the version."""
    sha256: str
    size_bytes: int
    file: str
    """Its place in the job directory: read-only, the same content as the model's."""


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
    """The code's digest; see `dlctl.contract.sent_files`."""
    created_at: str
    """UTC, ISO 8601."""
    dlctl_version: str
    resources: Resources
    batch: Batch
    launch: Launch
    environment: Environment
    """Where dlctl's own programs run, and the built-in loop."""
    framework: Framework
    training: Training
    checkpoint: CheckpointPolicy
    parameter_server: ParameterServer | None = None
    alone_on_server: ParameterServer | None = None
    """What the manifest says of it where one learner needs none: how a program of the user's own,
    which joins one all the same, is served by itself."""
    data_stores: list[DataStore] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    """The manifest's own environment variables for the learners. Never a secret."""
    secret_env: dict[str, str] = field(default_factory=dict)
    """Variable → reference (`env:NAME` or `file:PATH`), resolved on the node only."""
    evaluation_metrics: dict[str, Any] | None = None
    requirements: list[str] = field(default_factory=list)
    lifecycle: Lifecycle | None = None
    """None in plans of older versions: a person starts each attempt."""
    stop: StopRules | None = None
    """The manifest's guards, if it has any."""
    hang: HangPolicy | None = None
    """None: nobody looks for hangs."""
    notify: Notify | None = None
    """Who is told what happens, if anybody."""
    webhook_hosts: list[str] = field(default_factory=list)
    """The site's: hosts of webhooks that may be private, and do without TLS."""
    rehearsal: Rehearsal | None = None
    """What this attempt of a rehearsal does; None in a training."""
    not_in_this_version: list[str] = field(default_factory=list)
    """What the manifest asks for and this version, or the site, does not do: a sentence each."""
    code_changes: list[str] = field(default_factory=list)
    """The files in which this attempt's code differs from the code before it."""
    umask: str = "077"
    """The permissions, octal, that nothing gets that the job writes."""
    model: str = ""
    """The stored model whose code this is, as `ID@N`; empty if the user's folder was sent."""
    weights: StoredWeights | None = None
    """The stored file from which it starts, if `framework.arguments.weights` names a model."""
    git: GitState | None = None
    """What git said about the user's folder; None without git."""
    learner_environment: Environment | None = None
    """Where train.sh runs the learners' program; None: in `environment`."""
    tags: list[str] = field(default_factory=list)
    """Words that the user has given to it at its submission."""
    output_caches: list[str] = field(default_factory=lambda: list(CACHES))
    """What of the program's own folder is no output of it; see `CACHES`."""
    left_out: list[LeftOut] = field(default_factory=list)
    """What of the user's folder was not sent; of very many the largest."""
    schema_version: int = SCHEMA_VERSION

    @property
    def made_environment(self) -> Environment | None:
        """Return the environment that dlctl makes for the requirements, if there are any."""
        both = (self.learner_environment, self.environment)
        return next((each for each in both if each is not None and each.site_python), None)
