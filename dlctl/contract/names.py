"""Every file of the job directory; names are relative to `<root>/jobs/<training_id>/`."""

from __future__ import annotations

from dlctl.contract.metrics import Source, metrics_name

# What was asked, decided and rendered ------------------------------------------------------------
MANIFEST = "manifest.yml"
"""The manifest as it runs: overrides applied, credentials replaced by references. This one, `PLAN`
and `SCRIPT` are the first attempt's, written by `dlctl submit`."""
PLAN = "plan.json"
"""A `Plan`."""
SCRIPT = "job.sbatch"
"""The batch script; its argument is the attempt."""
SUBMIT_NEXT = "next.sh"
"""Shell that submits a later attempt, with `@NEXT@` in place of the attempt's number."""
NEXT = "@NEXT@"
CODE = "code"
"""The files that the user sent: MODEL_DIR. Programs run in this folder, and may write into it."""
CACHES = (
    "__pycache__", ".cache", ".git", ".ipynb_checkpoints", ".keras", ".mypy_cache", ".nv",
    ".pytest_cache", ".ruff_cache", ".triton", "wandb/debug*", "wandb/latest-run", "wandb/run-*",
)  # fmt: skip
"""What programs keep in their folder and is no output, as patterns of the shell: names of files and
folders at any depth, or paths from the program's folder. wandb has sent its `run-*` itself."""
DATA = "data"
"""DATA_DIR: a link to the one data store's data, or a folder with a link for each store."""
CONTROL = "control"
"""Requests, written by the login side and read by the nodes: one file per request."""
HALT_REQUEST = "control/halt"
"""A request to save and stop, by `dlctl halt`; the next submission removes it."""
CANCEL_REQUEST = "control/cancel"
"""A request to stop, by `dlctl cancel`; the next submission removes it."""
CHECKPOINTS = "checkpoints"
"""CHECKPOINT_DIR. The built-in loop's learners each write their share of `step-<12 digits>/`."""
METRICS = "metrics"
"""The metrics of all attempts."""
RESULTS = "results"
"""A link to the results of the newest attempt."""
RESULTS_INDEX = "results.json"
"""A link to the newest attempt's `ResultsIndex`."""
LOGS = "logs"
"""LOG_DIR: whatever the user's program writes there."""
ENVIRONMENTS = "environments"
"""Below a site's root: an environment for each list of requirements and Python of the site."""
NODES = "nodes"
"""Below a site's root: a `BadNode` for each node that has failed a training, `<host>.json`."""
FOLDERS = (
    "jobs", "runtime", "store", "secrets", ENVIRONMENTS, "env", "queue", "cache", "models",
)  # fmt: skip
"""Below a site's root: all folders of dlctl. What is in them can run as the user."""
JOB_STATE = "state"
"""JOB_STATE_DIR: shared by the learners of the training, kept over attempts."""
DLCTLS = (
    MANIFEST, PLAN, SCRIPT, SUBMIT_NEXT, CODE, CONTROL, CHECKPOINTS, METRICS, RESULTS,
    RESULTS_INDEX, "attempts", "notices", "rehearsal", "rehearsal.json", "search", "stores",
    "weights",
)  # fmt: skip
"""What in a job directory is dlctl's, or has a name of its own in `dlctl fetch`.

All else there is what the program has put beside its folder: in `../data`, LOG_DIR and so on."""


def shared_memory(user: int | str, training_id: str, attempt: int | str) -> str:
    """Return the folder of one attempt in /dev/shm of each of its nodes; `user` is a number."""
    return f"/dev/shm/dlctl-{user}-{training_id}.{attempt}"  # noqa: S108


def attempt_dir(attempt: int | str) -> str:
    """Return the directory of one attempt (the first is 1); `NEXT` stands for a number."""
    return f"attempts/{attempt}"


def train_script(attempt: int) -> str:
    """Return the script that each learner runs unless it is the built-in loop: the `Recipe`'s.

    Written by the supervisor before training.
    """
    return f"{attempt_dir(attempt)}/train.sh"


def arguments_file(attempt: int) -> str:
    """Return `framework.arguments` as JSON, beside the script."""
    return f"{attempt_dir(attempt)}/arguments.json"


def results_dir(attempt: int) -> str:
    """Return RESULT_DIR of an attempt, written by the learners.

    An attempt takes over the folder of the one before it by a rename. If that one left no verdict,
    late processes may have its files open, and the attempt copies them instead.
    """
    return f"{attempt_dir(attempt)}/{RESULTS}"


def results_index(attempt: int) -> str:
    """Return the `ResultsIndex` of an attempt.

    Written by the supervisor after the last file; `dlctl export` adds its file under the same lock.
    """
    return f"{attempt_dir(attempt)}/{RESULTS_INDEX}"


def trained_file(attempt: int) -> str:
    """Return the `Verdict`, not yet final, that says that all learners have completed.

    Written by the supervisor before the results are stored; a later attempt only stores them.
    """
    return f"{attempt_dir(attempt)}/trained.json"


def manifest_file(attempt: int) -> str:
    """Return the manifest of an attempt: that of the attempt before, with other resources or code.

    This, the plan and the script of a later attempt come from `dlctl resume` or the job that ends,
    right after `submit.begin`, by the command that created that.
    """
    return _of_attempt(attempt, MANIFEST)


def plan_file(attempt: int) -> str:
    """Return the `Plan` of an attempt."""
    return _of_attempt(attempt, PLAN)


def script_file(attempt: int | str) -> str:
    """Return the batch script of an attempt."""
    return _of_attempt(attempt, SCRIPT)


def _of_attempt(attempt: int | str, name: str) -> str:
    """Return the place of a file of an attempt; the first attempt's files are at the top."""
    return name if attempt == 1 else f"{attempt_dir(attempt)}/{name}"


def submit_begin(attempt: int | str) -> str:
    """Return the receipt that holds the token, written just before the scheduler is asked.

    Whoever submits creates it exclusively: `dlctl submit`, `resume`, or the job that ends.
    """
    return f"{attempt_dir(attempt)}/submit.begin"


def submit_answer(attempt: int) -> str:
    """Return the receipt with the scheduler's unchanged answer, written just afterwards.

    Line 1 is the exit code, line 2 the length of standard output in bytes; both outputs follow.
    """
    return f"{attempt_dir(attempt)}/submit.end"


def claim(attempt: int) -> str:
    """Return the claim: the job script's first act is to create it, exclusively, with its job id.

    A second job of the same attempt finds the file and ends: an attempt never runs twice. `nobody`
    in it comes from dlctl, which made sure that no job will run the attempt.
    """
    return f"{attempt_dir(attempt)}/job_id"


NOBODY = "nobody"
"""Content of a claim that dlctl made itself, so that no job ever runs that attempt."""


def job_output(attempt: int | str) -> str:
    """Return the output of the batch script and the supervisor; the scheduler writes it."""
    return f"{attempt_dir(attempt)}/slurm.out"


def learner_log(attempt: int, rank: int) -> str:
    """Return standard output and error of a learner, which writes it directly."""
    return f"{attempt_dir(attempt)}/learner-{rank}.log"


def status_file(attempt: int, role: str, rank: int) -> str:
    """Return the `Status` of one process, written every 5 s and at each change.

    Roles are `supervisor` (rank 0), `learner`, and `server` (its rank is the node). One process
    writes each: the supervisor, a learner's watchdog, a node's server.
    """
    return f"{attempt_dir(attempt)}/status/{role}-{rank}.json"


def end_file(attempt: int, rank: int) -> str:
    """Return how a learner's program ended: exit code or -, signal or -, time, in one line.

    Its watchdog writes it at once: MPI may be about to kill the watchdog, too.
    """
    return f"{attempt_dir(attempt)}/status/learner-{rank}.end"


def use_file(attempt: int, rank: int) -> str:
    """Return the `LearnerUse` of a learner, written by its collector.

    When a peak rises by 2 %, at least every 5 minutes, and at the end.
    """
    return f"{attempt_dir(attempt)}/status/use-{rank}.json"


def rulings_file(attempt: int) -> str:
    """Return the supervisor's `Rulings`, written at each event that they are about."""
    return f"{attempt_dir(attempt)}/rulings.json"


def preflight_file(attempt: int, rank: int) -> str:
    """Return the `Preflight` of one rank, from a process of a separate job step."""
    return f"{attempt_dir(attempt)}/preflight/{rank}.json"


def meeting_file(attempt: int, node: int) -> str:
    """Return where a node listens while its neighbours try to reach it, for 3 s: `ADDRESS PORT`."""
    return f"{attempt_dir(attempt)}/preflight/node-{node}.address"


def directive_file(attempt: int) -> str:
    """Return the supervisor's `Directive` to the watchdogs; with a server learners read it, too."""
    return f"{attempt_dir(attempt)}/directive.json"


def stacks_file(attempt: int, rank: int) -> str:
    """Return where each process of a learner was when the learners hung; the watchdog writes it."""
    return f"{attempt_dir(attempt)}/stacks/{rank}.txt"


def verdict_file(attempt: int) -> str:
    """Return the `Verdict`, the last file that an attempt writes.

    The supervisor writes it; the job script if the supervisor can't start or the job was requeued;
    the watchdogs of other nodes if the first node is lost.
    """
    return f"{attempt_dir(attempt)}/verdict.json"


def metrics_file(attempt: int, rank: int, source: Source = Source.LOOP) -> str:
    """Return the lines of metrics of one source: `{"step", "epoch", "time", <name>: value, …}`.

    A value is null if it is not a number; an `event` is in words. The built-in loop's rank 0 writes
    for all. Other sources end in `-program` (`ddl.log`), `-job` (the supervisor's plateaus and
    verdict), and from the collector `-log` (parsed output), `-progress` and `-node` (utilisation).
    """
    return f"{METRICS}/{metrics_name(attempt, rank, source)}"


def collector_state(rank: int) -> str:
    """Return how far a collector has parsed which file, over all attempts; written every 10 s."""
    return f"{METRICS}/{rank}.state"


def token(training_id: str, attempt: int | str) -> str:
    """Return the job's name and comment, which identify a job if the answer to sbatch was lost."""
    return f"{training_id}.{attempt}"


# The parameter server's, of one attempt -----------------------------------------------------------


def server_dir(attempt: int) -> str:
    """Return the folder in which learners, servers and supervisor find each other."""
    return f"{attempt_dir(attempt)}/server"


def server_secret(attempt: int) -> str:
    """Return the shared secret of servers and learners, mode 0600.

    The supervisor writes it before the servers start, and removes it at the end; if it was killed,
    the next attempt does.
    """
    return f"{server_dir(attempt)}/secret"


def parameters_file(attempt: int) -> str:
    """Return the `Parameters`, which learner 0 writes once the first snapshots exist."""
    return f"{server_dir(attempt)}/parameters.json"


def snapshot_file(attempt: int, shard: int) -> str:
    """Return the newest snapshot of a shard: its rows, raw.

    The first by learner 0, later ones by the shard's server every `snapshot_every_s` and on
    request.
    """
    return f"{server_dir(attempt)}/shard-{shard}.rows"


def snapshot_request_file(attempt: int) -> str:
    """Return the number of learner 0's newest request for snapshots; made at each checkpoint."""
    return f"{server_dir(attempt)}/snapshot-request"


def server_file(attempt: int, node: int) -> str:
    """Return the `ServerPlace` of a node's server, written at each of its starts."""
    return f"{server_dir(attempt)}/node-{node}.json"


def homes_file(attempt: int) -> str:
    """Return the `Homes` of the shards.

    The supervisor writes it before the servers start, when a node is lost or a learner given up,
    and at the end.
    """
    return f"{server_dir(attempt)}/homes.json"


def server_log(attempt: int, node: int) -> str:
    """Return standard output and error of the server of a node."""
    return f"{attempt_dir(attempt)}/server-{node}.log"


def restarted_file(attempt: int) -> str:
    """Return an empty file: it exists once any learner was restarted or given up."""
    return f"{server_dir(attempt)}/restarted"


def position_file(attempt: int) -> str:
    """Return learner 0's position after its last epoch, in case it is restarted."""
    return f"{server_dir(attempt)}/position.json"


def cursor_file(attempt: int) -> str:
    """Return the global cursor: which learner has which samples."""
    return f"{attempt_dir(attempt)}/cursor"


def cursor_learner_file(attempt: int, rank: int) -> str:
    """Return the number that a learner drew in the cursor; the supervisor expels by it."""
    return f"{server_dir(attempt)}/learner-{rank}"
