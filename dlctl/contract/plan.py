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
    """Processes that train."""
    nodes: int
    learners_per_node: list[int]
    """Learners on each node, in node order; sums to `learners`."""
    cpus_per_learner: int
    """Whole CPUs."""
    threads_per_learner: int
    """`OMP_NUM_THREADS` and torch's threads."""
    gpus_per_learner: int
    memory_bytes_per_learner: int | None
    """None: the site's default."""
    memory_bytes_per_node: int | None
    """The memory of the fullest node, with its parameter server: `--mem`."""
    gpus_per_node: int
    """GPUs on the fullest node."""
    time_s: int | None
    """The time limit; None: the site's."""
    halt_margin_s: int
    """How long before the time limit the supervisor halts the training, which then saves."""
    first_ranks: list[int] = field(default_factory=list)
    """The rank of the first learner of each node: each node has a block of ranks."""
    most_memory_bytes_per_learner: int | None = None
    """How much memory as many learners could have at the site; None: not known."""
    most_time_s: int | None = None
    """The longest time limit of a job in its partition; None: not known."""

    def node_of(self, rank: int) -> tuple[int, int]:
        """Return the node of a rank, and the first rank there."""
        node = max(0, bisect_right(self.first_ranks, rank) - 1)
        return node, self.first_ranks[node]


@dataclass(frozen=True)
class Batch:
    """Requests to the scheduler besides the resources."""

    scheduler: str
    """`slurm` or `local`."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    """Features of nodes."""
    gres: str | None = None
    """The whole GRES request of one node, GPUs included, in Slurm's words."""
    extra: list[str] = field(default_factory=list)
    """Further sbatch options, which dlctl passes on unchanged."""
    exclude: list[str] = field(default_factory=list)
    """Hosts that failed earlier attempts: avoided as long as enough others are left."""


@dataclass(frozen=True)
class Launch:
    """The launcher's command line: `argv` goes before the program."""

    kind: str
    """The launcher: `srun`, `mpirun`, or `direct` (a plain child process)."""
    argv: list[str]
    step_per_learner: bool = False
    """Whether every learner is a separate job step without a common MPI world, as with a parameter
    server."""


@dataclass(frozen=True)
class Environment:
    """The node's Python, and the set-up that it needs."""

    python: str
    """The node's Python, an absolute path; empty if the modules or the container bring it onto the
    PATH. With `requirements` it belongs to their environment, which also sees the site's packages.
    """
    modules: list[str] = field(default_factory=list)
    """Environment modules, in order."""
    setup: list[str] = field(default_factory=list)
    """Shell lines of the site, run as they are."""
    container: list[str] = field(default_factory=list)
    """The prefix of preflight and learners, e.g. `apptainer exec image.sif`."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of every job of the site."""
    site_python: str | None = None
    """With `requirements`, the site's Python, which made the environment; otherwise None."""
    name: str = ""
    """Which of the site's `environments` this is; empty: its own `environment`."""


@dataclass(frozen=True)
class Recipe:
    """The way to run a framework's learners, taken from its folder at submission."""

    origin: str
    """The folder's name, and where it was found: `package`, `user` or `folder`."""
    script: str
    """The text of train.sh; empty if the built-in loop runs wherever the job does."""
    loop: bool = False
    """The built-in loop trains what `job` names."""
    loop_unless: str | None = None
    """A program that trains in place of the built-in loop on nodes that have it."""
    loop_module: str | None = None
    """The framework's module for the built-in loop: its path in the code or in the runtime."""
    signal: str = "USR2"
    """The signal that makes a learner save and end, without SIG."""
    modules: list[str] = field(default_factory=list)
    """The Python modules that a node must have."""
    install: str = ""
    """The packages for pip that bring them."""
    addresses: bool = False
    """A learner gets LEARNER_ADDRESSES, `host:port` of each learner."""
    fixed_paths: list[str] = field(default_factory=list)
    """The paths of the service's containers that the program names, and that train.sh lets it see.
    """
    searched: list[str] = field(default_factory=list)
    """In a search's trial: the arguments whose options `DLCTL_OPTIONS` holds, rather than the text
    of train.sh."""


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
    """The arguments of `build`, or of the program."""
    recipe: Recipe | None = None
    """How the learners run; None: the built-in loop, or the command as it is."""

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
    """Samples of a batch, over all learners together."""
    seed: int = 0
    validate_every_epochs: int = 1
    log_every_steps: int = 10
    learning_rate_schedule: LearningRateSchedule = field(default_factory=LearningRateSchedule)
    clip_gradient_norm: float | None = None
    exchange: str = "auto"
    """How learners agree: `auto`, `shm`, `mpi`, `hierarchical` or `torch`."""
    average_every_steps: int = 1
    """1: learners average gradients at each step; N: they average weights every N steps (local
    SGD)."""
    prefetch: str = "auto"
    """Whether to read the next batches while the model trains: `auto`, `on` or `off`."""
    steps: int | None = None
    """After how many steps the training ends, if the epochs have more."""
    classes: int | None = None
    """Among how many classes the model chooses: what guessing would achieve."""
    settings_of_build: bool = False
    """Whether a training that goes on from a checkpoint takes the optimizer's settings (learning
    rate, momentum and others) from `build`; by default it keeps those of the checkpoint."""


@dataclass(frozen=True)
class CheckpointPolicy:
    """The times of checkpoints, and how many are kept. At most one of `every_*` and `auto`."""

    every_steps: int | None = None
    every_epochs: int | None = None
    every_s: int | None = None
    keep: int = 2
    """How many of the newest the loop keeps."""
    keep_every_steps: int | None = None
    """The loop keeps the first one at or after each multiple of this forever."""
    auto: bool = False
    """The interval follows from the measured cost of a checkpoint and `mtbf_s` (Young, Daly)."""
    mtbf_s: float | None = None
    """Mean time between failures of the whole job: the site's value for one node, divided by the
    number of nodes whose loss ends the job."""
    files: str | None = None
    """Which files or folders of CHECKPOINT_DIR are a program's checkpoints: a pattern whose last
    number is the step. None: those of the built-in loop."""


ELASTICITY = 0.9
"""β = p·α, of p learners: Zhang, Choromanska, LeCun, 2015, section 5.1."""
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""DiLoCo's: Douillard et al., 2023, section 3.1."""


@dataclass(frozen=True)
class ParameterServer:
    """Settings of the parameter server; a plan without one, or for one learner, has None."""

    solver: str
    """`parallel_sgd`, `downpour_sgd`, `elastic_averaging`, `model_averaging`, `diloco`, or `own`:
    the solver that `build` returns."""
    shard_nodes: list[int]
    """For each shard the number of its primary node."""
    argv: list[str] = field(default_factory=list)
    """The prefix of the command of one node's server."""
    push_every: int = 1
    """Batches between a learner's pushes: a chunk of the global cursor has this many batches."""
    pull_every: int = 1
    """Batches between pulls, a multiple of `push_every`."""
    staleness: int | None = None
    """How many pushes a learner may be ahead of the slowest; None: any number. 0: all wait."""
    min_learners: int = 1
    """With fewer learners the training ends."""
    network: str | None = None
    """An interface, or addresses such as 10.1.0.0/16; None: the address that the host's
    name resolves to."""
    learning_rate: float | None = None
    """Learning rate of the server's steps; None: the optimizer's. diloco: the outer rate."""
    momentum: float | None = None
    """Momentum of the server's steps."""
    adagrad: bool = False
    """downpour_sgd: the server's steps have a separate rate for each parameter."""
    moving_rate: float | None = None
    """elastic_averaging: α; None: 0.9 divided by the number of learners."""
    timeout_s: float = 120.0
    """How long to wait for servers, and at the start for other learners."""
    snapshot_every_s: float = 60.0
    """Seconds between snapshots of each shard."""
    batch_samples: int = 0
    """Samples of one learner's batch in the built-in loop."""
    rejoin_argv: list[list[str]] = field(default_factory=list)
    """For each node the prefix of the command of a learner that is restarted there: its step shares
    CPUs, and all GPUs of the job on the node, with other steps."""


@dataclass(frozen=True)
class DataStore:
    """A place where training data comes from or results go to, reachable on the node."""

    id: str
    type: str
    """A name in `dlctl stores list`."""
    path: str | None = None
    """Directory on the nodes' file systems, of a mounted store."""
    training_data: str | None = None
    """Directory below `path` that DATA_DIR names (`container` in the manifest)."""
    training_results: str | None = None
    """Directory below `path` to which the job copies the results."""
    connection: dict[str, str] = field(default_factory=dict)
    """The manifest's `connection`, without its credentials, with the defaults of its type."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Key of `connection` → reference (`file:PATH`), resolved on the node only."""
    position: int = 0
    """The store's place in the manifest's list, from 0."""
    scripts: list[str] = field(default_factory=list)
    """Which scripts the store has in the job directory: `load`, `store`; a mounted one has none."""
    needs: list[str] = field(default_factory=list)
    """Python packages without which the node can't run the scripts."""
    via: str = "node"
    """Who moves the data: the job's `node`, or outside the job the `login` node or the `laptop`."""
    uses: str = ""
    """The implementation of its type; empty: the type's scripts are its own."""
    takes_checkpoints: bool = False
    """The checkpoints go to the store with the results."""
    cache_limit_bytes: int | None = None
    """How much the site's cache may take; None: as much as there is room."""


@dataclass(frozen=True)
class GitState:
    """The state of the user's folder in git when it was sent."""

    commit: str
    """The commit's hash."""
    branch: str = ""
    """Empty if no branch was checked out."""
    dirty: bool = False
    """The folder differed from the commit."""


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
    """The job directory."""
    runtime_dir: str
    """`<root>/runtime/<hash>`."""
    code_digest: str
    """The folder's name in `<root>/store/`: the beginning of the SHA-256 of its index."""
    created_at: str
    """UTC, ISO 8601."""
    dlctl_version: str
    """The version that made the plan."""
    resources: Resources
    batch: Batch
    launch: Launch
    environment: Environment
    """Where dlctl's own programs run, and the built-in loop."""
    framework: Framework
    training: Training
    checkpoint: CheckpointPolicy
    parameter_server: ParameterServer | None = None
    """How learners share their parameters without waiting; None: by allreduce."""
    alone_on_server: ParameterServer | None = None
    """The manifest's settings if a single learner needs no server. If the user's program joins one
    anyway, it gets a private server with these settings."""
    data_stores: list[DataStore] = field(default_factory=list)
    """The stores that nodes read and write."""
    env: dict[str, str] = field(default_factory=dict)
    """The manifest's environment variables for the learners. Never a secret."""
    secret_env: dict[str, str] = field(default_factory=dict)
    """Variable → reference (`env:NAME` or `file:PATH`), resolved on the node only."""
    evaluation_metrics: dict[str, Any] | None = None
    """How the program's output becomes metrics, in dlctl's own words: the keys `type`, `in`,
    `line_lookahead`, `groups`, `parser` as in the manifest; `default` if it says nothing."""
    requirements: list[str] = field(default_factory=list)
    """Lines for pip, including those of a requirements file."""
    lifecycle: Lifecycle | None = None
    """What happens after the first attempt; None in the doctor's job, which has only one."""
    stop: StopRules | None = None
    """The manifest's guards, if it has any."""
    hang: HangPolicy | None = None
    """A `HangPolicy`; None: nobody looks for hangs."""
    notify: Notify | None = None
    """Who is told what happens, if anybody."""
    webhook_hosts: list[str] = field(default_factory=list)
    """The site's: names, addresses and networks of webhooks that may be private, and do without
    TLS."""
    rehearsal: Rehearsal | None = None
    """This attempt's part in a rehearsal; None in a training."""
    not_in_this_version: list[str] = field(default_factory=list)
    """Requests of the manifest that this version, or the site, can't meet: one sentence each."""
    code_changes: list[str] = field(default_factory=list)
    """The files in which this attempt's code differs from the code before it (`dlctl resume
    --code`)."""
    umask: str = "077"
    """The permissions, octal, that files of the job never get."""
    model: str = ""
    """The version of a stored model whose code this is, as `ID@N`; empty if the user's folder was
    sent."""
    weights: StoredWeights | None = None
    """The stored file from which the training starts."""
    git: GitState | None = None
    """The git state of the user's folder; None without git."""
    learner_environment: Environment | None = None
    """Where train.sh runs the learners' program; None: in `environment`."""
    tags: list[str] = field(default_factory=list)
    """Words that the user gave to it at its submission."""
    varied: str = ""
    """What tells it from the others of its command, as `lr=0.1 seed=2`."""
    output_caches: list[str] = field(default_factory=lambda: list(CACHES))
    """Patterns of what in the program's own folder is no output."""
    left_out: list[LeftOut] = field(default_factory=list)
    """The 500 largest files and folders of the user's folder that were not sent."""
    schema_version: int = SCHEMA_VERSION

    @property
    def folders(self) -> list[str]:
        """Return the folders that a container has to see."""
        return [self.root, *(store.path for store in self.data_stores if store.path)]

    @property
    def made_environment(self) -> Environment | None:
        """Return the environment that dlctl makes for the requirements, if there are any."""
        both = (self.learner_environment, self.environment)
        return next((each for each in both if each is not None and each.site_python), None)
