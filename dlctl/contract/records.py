"""The records that login side and nodes exchange, one file for each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dlctl.contract.lifecycle import Action
from dlctl.contract.measured.past import Past
from dlctl.contract.states import State

SCHEMA_VERSION = 1


STOPPING = "stopping: "
"""Begins the reason of a learner that saves, or ends, because it was asked to: no complaint."""


@dataclass(frozen=True)
class Status:
    """The status of one process, rewritten at every heartbeat (for a learner by its watchdog)."""

    role: str
    """`supervisor`, `learner` or `server`."""
    rank: int
    """0 for the supervisor; for a server the number of its node."""
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
    """Optimizer steps done."""
    epoch: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    """The newest values; None is NaN or infinity, which JSON can't hold."""
    exit_code: int | None = None
    """None: it has not ended."""
    signal: int | None = None
    """The signal that ended it."""
    last_lines: list[str] = field(default_factory=list)
    """The end of the log, if the process has failed."""
    gpus: str = ""
    """Slurm's numbers of a learner's GPUs, separated by commas, if Slurm gave any."""
    done: float | None = None
    """The finished share of the training, from 0 to 1, if the learner reports it; of the supervisor
    the share of a store's data that has moved."""
    progressed_at: float = 0.0
    """When the learner last reported progress: a step, or a batch of the validation."""
    printed_at: float = 0.0
    """When its log last grew; 0 if it never did."""
    schema_version: int = SCHEMA_VERSION

    def closed(self, *, failed: bool) -> Status:
        """Return the status once the attempt has ended: nobody is still at work then.

        Args:
            failed: whether the attempt failed because of this process.
        """
        if self.state.final:
            return self
        state, reason = State.CANCELLED, "ended with the others"
        if failed:
            state, reason = State.FAILED, "killed from outside"
        return replace(self, state=state, reason=reason)


@dataclass(frozen=True)
class Rulings:
    """The supervisor's statuses of processes that vanished, were given up, or will be restarted."""

    statuses: list[Status] = field(default_factory=list)
    """The rulings on each start of a process, the newest last. A final ruling stands even if the
    process still writes. A ruling that says that the process will be restarted stands until the
    process's status has a `started_at` that no ruling has."""
    presumed: list[Status] = field(default_factory=list)
    """How the supervisor presumes that processes without a final status have ended. If their own
    final status arrives late, it takes precedence."""
    schema_version: int = SCHEMA_VERSION

    def on(self, role: str, rank: int, own: Status | None) -> Status | None:
        """Return the status of a process, given the one that it wrote itself."""

        def about(statuses: list[Status]) -> list[Status]:
            return [each for each in statuses if (each.role, each.rank) == (role, rank)]

        ruled, presumed = about(self.statuses), about(self.presumed)
        newest = presumed[-1] if presumed else ruled[-1] if ruled else None
        if own is None or newest is None:
            return newest or own
        is_over = any(each.started_at == own.started_at for each in ruled)
        if presumed:
            return own if own.state.final and not is_over else newest
        return newest if newest.state.final or is_over else own


BAD_NODE_S = 24 * 3600
"""How long a site avoids a node that failed a training."""


@dataclass(frozen=True)
class NodeFault:
    """Why a node is not fit for a training."""

    kind: str
    """A `VerdictKind`."""
    what: str
    """A sentence about the node, without its name: `has no space left in /tmp`."""
    certain: bool = True
    """The node is to blame even if all others have the same fault."""


@dataclass(frozen=True)
class BadNode:
    """A node that failed a training; later ones avoid it for a while."""

    host: str
    """The scheduler's name for it."""
    kind: str
    """A `VerdictKind`."""
    reason: str
    """One sentence: what was seen."""
    training_id: str
    """The training that it failed."""
    attempt: int
    seen_at: float
    expires_at: float
    """New jobs avoid the node until then, a day after `seen_at`."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Preflight:
    """The report of one rank from before training."""

    rank: int
    host: str
    python: str
    launcher_size: int
    """The number of processes that the launcher (Slurm, mpirun) says it started."""
    mpi_size: int | None
    """MPI.COMM_WORLD.size, or None if the training needs no MPI or the node can't import it."""
    mpi_rank: int | None
    mpi_library: str = ""
    """The library's name; `starting` while MPI_Init runs."""
    port: int = 0
    """A free TCP port on this host; rank 0's becomes MASTER_PORT."""
    address: str = ""
    """This host's name as the other nodes resolve it; rank 0's becomes MASTER_ADDR."""
    problems: list[str] = field(default_factory=list)
    """Two lines each: what was seen, what to do."""
    mistakes: list[str] = field(default_factory=list)
    """The problems that lie in what the user sent."""
    node: str = ""
    """The scheduler's name for the node; empty if it has none of its own."""
    node_rank: int = 0
    """The node's number in the job."""
    clock_at: float = 0.0
    """When the report was begun, by the node's clock; the supervisor compares it with its own."""
    took_s: float = 0.0
    """How long the checks of the node's health took."""
    faults: list[NodeFault] = field(default_factory=list)
    """The problems that make the node unfit."""
    remarks: list[str] = field(default_factory=list)
    """Oddities that end no training; the job's output shows them."""
    reached: list[int] = field(default_factory=list)
    """The numbers of the neighbouring nodes to which a TCP connection worked."""
    unreached: list[int] = field(default_factory=list)
    """The numbers of those to which none worked though they listened."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Directive:
    """An instruction of the supervisor to the learners: `halt`, `stop` or `stacks`."""

    action: str
    """`halt`, `stop` or `stacks`; with `stacks` nothing ends, and the watchdogs save the stacks of
    their learners."""
    reason: str
    issued_at: float
    grace_s: float
    """How long the learners may take."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Evidence:
    """The evidence of a verdict: the process that ended the attempt, and the scheduler's words."""

    role: str = ""
    """Empty if no process is to blame; then the fields up to `last_lines` say nothing."""
    rank: int = 0
    host: str = ""
    exit_code: int | None = None
    signal: int | None = None
    last_lines: list[str] = field(default_factory=list)
    """The end of its log, 20 lines at most."""
    scheduler_state: str = ""
    """The scheduler's word for the job's state at its end, such as PREEMPTED; empty if dlctl did
    not ask."""
    scheduler_reason: str = ""
    """The scheduler's own words about it."""


@dataclass(frozen=True)
class Amount:
    """The number and size of the files of a folder."""

    files: int = 0
    size_bytes: int = 0
    """The size of all of them together."""


@dataclass(frozen=True)
class OutputPlace:
    """A file, or all files of a folder, that a program has written into its own folder."""

    path: str
    """Relative to `code/`; that of a folder ends with `/`; empty: all other files."""
    files: int
    """0: `path` is a folder that can't be read, wherever in the job directory."""
    size_bytes: int
    """The size of all of them together."""


@dataclass(frozen=True)
class Made:
    """The files that a training has made so far."""

    results: Amount = field(default_factory=Amount)
    """In RESULT_DIR."""
    checkpoints: Amount = field(default_factory=Amount)
    """In CHECKPOINT_DIR."""
    output: list[OutputPlace] = field(default_factory=list)
    """In `code/`, the program's own folder: what was not sent, or is not as it was sent; what can't
    be read first, then the largest."""


@dataclass(frozen=True)
class Verdict:
    """The end of an attempt; `state` is COMPLETED, FAILED, HALTED or CANCELLED."""

    attempt: int
    job_id: str
    """The scheduler's id of the job."""
    state: State
    reason: str
    """One sentence: what was seen."""
    hint: str = ""
    """One sentence: what to do next."""
    evidence: Evidence | None = None
    """An `Evidence`; None if the training completed, or a person ended it."""
    finished_at: float = 0.0
    kind: str = ""
    """A `VerdictKind`: why, for programs. Empty if nothing went wrong, and in old verdicts."""
    action: Action | None = None
    """The follow-up; None if nobody has decided it yet."""
    progress: int = -1
    """The step of the newest checkpoint, or when a program last wrote to CHECKPOINT_DIR, in Unix
    seconds; -1 without any."""
    step: int = -1
    """The last step that any learner has reported; -1 without any."""
    used_s: float = 0.0
    """How much of the training's time the attempt has used; what a fault lost does not count."""
    bad_hosts: list[str] = field(default_factory=list)
    """The nodes that are to blame, by the scheduler's names: no attempt runs there again."""
    made: Made | None = None
    """The files that the training has made so far; None if nobody could look."""
    pasts: list[Past] = field(default_factory=list)
    """The usage of the attempts up to this one, the newest last; the newest 50."""
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
    """Files that are not regular (FIFO, socket), and links to a folder, to nothing or to the
    outside."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Parameters:
    """The contents of a parameter server, written by learner 0; other learners must match it."""

    count: int
    """Elements of all parameters together."""
    dtype: str
    """Dtype of the rows, as torch names it: `float32` or `float64`."""
    rows: int
    """Rows of a snapshot: the weights, and the solver's state."""
    model: str
    """Digest of `description`."""
    description: list[str] = field(default_factory=list)
    """Names, shapes and dtypes, the solver, and everything else in which all learners must agree.
    """
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class ServerPlace:
    """The address of a node's server; rewritten when the server is restarted."""

    node: int
    host: str
    address: str
    """Where the other nodes reach it."""
    port: int
    pid: int
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Homes:
    """The primary node of each shard, and the nodes and learners that were given up."""

    generation: int
    """Counted up at each change."""
    shard_nodes: list[int]
    """For each shard the number of its primary node."""
    lost_nodes: list[int] = field(default_factory=list)
    """Servers refuse messages from them, even if they were only cut off and continue to run."""
    ended: bool = False
    """No learner needs a server any more."""
    lost_learners: list[int] = field(default_factory=list)
    """Ranks of learners that were given up though their nodes were not."""
    schema_version: int = SCHEMA_VERSION


MPI_PENDING = "starting"
"""`mpi_library` while MPI_Init runs: stays there if that ends the process."""
