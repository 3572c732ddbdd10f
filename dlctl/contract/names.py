"""Every file of the job directory; names are relative to `<root>/jobs/<training_id>/`."""

from __future__ import annotations

from dlctl.contract.metrics import Source, metrics_name

# What was asked, decided and rendered ------------------------------------------------------------
MANIFEST = "manifest.yml"
"""The manifest as it runs: overrides applied, credentials replaced by references.

This one, `PLAN` and `SCRIPT` are the first attempt's; see `plan_file` for the later ones."""
PLAN = "plan.json"
"""A `Plan`."""
SCRIPT = "job.sbatch"
"""The batch script; its one argument is the attempt number."""
SUBMIT_NEXT = "next.sh"
"""Shell that submits an attempt after the first, with `NEXT` in place of the attempt's number."""
NEXT = "@NEXT@"
CODE = "code"
"""The files that the user sent. Programs run in this folder, and may write into it."""
CACHES = (
    "__pycache__", ".cache", ".git", ".ipynb_checkpoints", ".keras", ".mypy_cache", ".nv",
    ".pytest_cache", ".ruff_cache", ".triton", "wandb/debug*", "wandb/latest-run", "wandb/run-*",
)  # fmt: skip
"""What programs keep in their folder and is no output, as patterns of the shell: names of files and
folders at any depth, or paths from the program's folder. wandb has sent its `run-*` itself."""
DATA = "data"
"""Links to the data stores: what DATA_DIR names."""
CONTROL = "control"
"""Requests, written by the login side and read by the nodes: one file per request."""
HALT_REQUEST = "control/halt"
CANCEL_REQUEST = "control/cancel"
CHECKPOINTS = "checkpoints"
METRICS = "metrics"
RESULTS = "results"
"""A link to the results of the newest attempt; see `results_dir`."""
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
    """Return the script that each learner of an attempt runs, unless it is the built-in loop."""
    return f"{attempt_dir(attempt)}/train.sh"


def arguments_file(attempt: int) -> str:
    """Return the JSON file with `framework.arguments`, beside the script."""
    return f"{attempt_dir(attempt)}/arguments.json"


def results_dir(attempt: int) -> str:
    """Return RESULT_DIR of an attempt, which takes over the results of the attempt before it."""
    return f"{attempt_dir(attempt)}/{RESULTS}"


def results_index(attempt: int) -> str:
    """Return the `ResultsIndex` of an attempt, written after the last file of its results."""
    return f"{attempt_dir(attempt)}/{RESULTS_INDEX}"


def trained_file(attempt: int) -> str:
    """Return the file that says that all learners have completed: a `Verdict`, not yet final.

    A later attempt only stores the results.
    """
    return f"{attempt_dir(attempt)}/trained.json"


def manifest_file(attempt: int) -> str:
    """Return the manifest of one attempt."""
    return _of_attempt(attempt, MANIFEST)


def plan_file(attempt: int) -> str:
    """Return the `Plan` of one attempt: a resumption may ask for other resources."""
    return _of_attempt(attempt, PLAN)


def script_file(attempt: int | str) -> str:
    """Return the batch script of one attempt."""
    return _of_attempt(attempt, SCRIPT)


def _of_attempt(attempt: int | str, name: str) -> str:
    """Return the place of a file of an attempt; the first attempt's files are at the top."""
    return name if attempt == 1 else f"{attempt_dir(attempt)}/{name}"


def submit_begin(attempt: int | str) -> str:
    """Return the receipt written just before the scheduler is asked; holds the token."""
    return f"{attempt_dir(attempt)}/submit.begin"


def submit_answer(attempt: int) -> str:
    """Return the receipt written just afterwards: the scheduler's unchanged answer.

    Line 1 is the exit code, line 2 the length of standard output in bytes; both outputs follow.
    """
    return f"{attempt_dir(attempt)}/submit.end"


def claim(attempt: int) -> str:
    """Return the file that the job script creates first (exclusively), with its job id.

    A second job of the same attempt finds the file and ends: an attempt never runs twice.
    """
    return f"{attempt_dir(attempt)}/job_id"


NOBODY = "nobody"
"""Content of a claim that dlctl made itself, so that no job ever runs that attempt."""


def job_output(attempt: int | str) -> str:
    """Return the output of the batch script and the supervisor."""
    return f"{attempt_dir(attempt)}/slurm.out"


def learner_log(attempt: int, rank: int) -> str:
    """Return standard output and error of one learner."""
    return f"{attempt_dir(attempt)}/learner-{rank}.log"


def status_file(attempt: int, role: str, rank: int) -> str:
    """Return the `Status` of one process; role is `supervisor` or `learner`."""
    return f"{attempt_dir(attempt)}/status/{role}-{rank}.json"


def use_file(attempt: int, rank: int) -> str:
    """Return what a learner has used so far in an attempt (`measured.past.LearnerUse`)."""
    return f"{attempt_dir(attempt)}/status/use-{rank}.json"


def rulings_file(attempt: int) -> str:
    """Return the supervisor's `Rulings` on processes that can't speak for themselves."""
    return f"{attempt_dir(attempt)}/rulings.json"


def preflight_file(attempt: int, rank: int) -> str:
    """Return the `Preflight` report of one rank."""
    return f"{attempt_dir(attempt)}/preflight/{rank}.json"


def meeting_file(attempt: int, node: int) -> str:
    """Return where a node leaves its address while the others try to reach it: `ADDRESS PORT`."""
    return f"{attempt_dir(attempt)}/preflight/node-{node}.address"


def directive_file(attempt: int) -> str:
    """Return the supervisor's `Directive` to the watchdogs beside the learners."""
    return f"{attempt_dir(attempt)}/directive.json"


def stacks_file(attempt: int, rank: int) -> str:
    """Return where the stacks of a learner's processes are saved, if the learners hang."""
    return f"{attempt_dir(attempt)}/stacks/{rank}.txt"


def verdict_file(attempt: int) -> str:
    """Return the `Verdict`: how the attempt ended."""
    return f"{attempt_dir(attempt)}/verdict.json"


def metrics_file(attempt: int, rank: int, source: Source = Source.LOOP) -> str:
    """Return the JSON lines of one source: `{"step", "epoch", "time", <name>: value, …}`."""
    return f"{METRICS}/{metrics_name(attempt, rank, source)}"


def collector_state(rank: int) -> str:
    """Return how far the collector of a rank has parsed which file, over all attempts."""
    return f"{METRICS}/{rank}.state"


def token(training_id: str, attempt: int | str) -> str:
    """Return the job's name and comment, which identify a job if the answer to sbatch was lost."""
    return f"{training_id}.{attempt}"


# The parameter server's, of one attempt -----------------------------------------------------------


def server_dir(attempt: int) -> str:
    """Return the folder in which learners, servers and supervisor find each other."""
    return f"{attempt_dir(attempt)}/server"


def server_secret(attempt: int) -> str:
    """Return the secret of the attempt's servers and learners; mode 0600, removed at the end."""
    return f"{server_dir(attempt)}/secret"


def parameters_file(attempt: int) -> str:
    """Return the `Parameters`, which learner 0 writes once the first snapshots exist."""
    return f"{server_dir(attempt)}/parameters.json"


def snapshot_file(attempt: int, shard: int) -> str:
    """Return the newest snapshot of a shard: its rows, raw; learner 0 writes the first one."""
    return f"{server_dir(attempt)}/shard-{shard}.rows"


def snapshot_request_file(attempt: int) -> str:
    """Return the number of the newest request for snapshots; each answers with its number."""
    return f"{server_dir(attempt)}/snapshot-request"


def server_file(attempt: int, node: int) -> str:
    """Return the `ServerPlace` of the server of a node."""
    return f"{server_dir(attempt)}/node-{node}.json"


def homes_file(attempt: int) -> str:
    """Return the `Homes` of the shards; written by the supervisor, again when a node is lost."""
    return f"{server_dir(attempt)}/homes.json"


def server_log(attempt: int, node: int) -> str:
    """Return standard output and error of the server of a node."""
    return f"{attempt_dir(attempt)}/server-{node}.log"


def restarted_file(attempt: int) -> str:
    """Return the file that exists once any learner was restarted or given up."""
    return f"{server_dir(attempt)}/restarted"


def position_file(attempt: int) -> str:
    """Return the file with learner 0's position after its last epoch, for a restart."""
    return f"{server_dir(attempt)}/position.json"


def cursor_file(attempt: int) -> str:
    """Return the global cursor of learners that do not wait for one another."""
    return f"{attempt_dir(attempt)}/cursor"


def cursor_learner_file(attempt: int, rank: int) -> str:
    """Return the file with the number that a learner drew from the cursor, for expelling it."""
    return f"{server_dir(attempt)}/learner-{rank}"
