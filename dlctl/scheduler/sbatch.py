"""The options of sbatch: those of a plan, and which no manifest and no site file may set. Pure."""

from __future__ import annotations

import shlex

from dlctl import contract
from dlctl.errors import PlanError
from dlctl.units import format_slurm_time

_MEBIBYTE = 1 << 20

_KEYS = {
    "scheduler.account": "account", "scheduler.constraint": "constraint",
    "scheduler.partition": "partition", "scheduler.qos": "qos",
    "cpus": "cpus-per-gpu cpus-per-task", "gpus or scheduler.gres": "gres",
    "gpus": "gpus gpus-per-node gpus-per-socket gpus-per-task tres-per-task",
    "memory": "mem mem-per-cpu mem-per-gpu", "nodes": "nodes", "learners": "ntasks", "time": "time",
    "learners_per_node": "ntasks-per-gpu ntasks-per-node ntasks-per-tres tasks-per-node",
    "": "array chdir cluster clusters comment distribution error help job-name no-kill no-requeue"
        " open-mode output parsable quiet requeue signal test-only usage version wait workdir wrap",
}  # fmt: skip
_LONG = {option: key for key, options in _KEYS.items() for option in options.split()}
"""Options that no one else may set → the key of a manifest to use instead, if there is one.
`clusters` would hide the job from squeue, `quiet` its id, and `distribution` moves the ranks."""

_SHORT = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "M": "clusters",
    "N": "nodes", "Q": "quiet", "V": "version", "W": "wait", "a": "array", "c": "cpus-per-task",
    "e": "error", "h": "help", "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output",
    "p": "partition", "q": "qos", "t": "time",
}  # fmt: skip
_SHORT_FLAGS = frozenset("HIOsv")
"""Short options without a value: further ones may follow in the same word, as in `-HN2`."""


def refusal(option: str) -> str:
    """Return why an option of sbatch is not allowed, as a sentence; "" if it is.

    As sbatch does, it takes a prefix of a long option for the option. A prefix of several options,
    one of which is dlctl's, is refused as well: which one it means depends on Slurm's version.
    """
    name = _meant(option)
    if not name:
        return ""
    means = "" if option[2:].startswith(name) else f", which may mean --{name},"
    if not _LONG[name]:
        return f"{option!r}{means} is not allowed, because dlctl decides it; remove it"
    return f"{option!r}{means} is set by dlctl itself; use `{_LONG[name]}` in the manifest instead"


def _meant(option: str) -> str:
    """Return the long name of the option of dlctl's own that sbatch may take the word for."""
    if option.startswith("--"):
        written = option[2:].replace("=", " ").partition(" ")[0]
        found = [name for name in sorted(_LONG) if written and name.startswith(written)]
        return written if written in found else next(iter(found), "")
    for letter in option[1:] if option.startswith("-") else "":
        if letter in _SHORT:
            return _SHORT[letter]
        if letter not in _SHORT_FLAGS:
            return ""  # the rest is its value
    return ""


def sbatch_options(plan: contract.Plan) -> list[str]:
    """Return the options of a batch script, one per line.

    Job name, comment, working directory and output depend on the attempt, so they are on the
    command line (`Slurm.submit_script`).
    """
    resources, batch = plan.resources, plan.batch
    chosen = {
        "nodes": resources.nodes,
        "ntasks": resources.learners,
        "ntasks-per-node": max(resources.learners_per_node),
        "cpus-per-task": resources.cpus_per_learner,
        **where(plan, resources.memory_bytes_per_node),
        "gres": batch.gres,
        "signal": f"B:USR2@{resources.halt_margin_s}",
    }
    chosen |= _mails(plan.notify)
    given = {name: value for name, value in chosen.items() if value is not None}
    options = [f"--{name}={_word(name, value)}" for name, value in given.items()]
    extra = [_word("extra", option) for option in batch.extra]
    # Learners without a common MPI world may continue without a lost node.
    spared = ["--no-kill"] if plan.parameter_server or _goes_on_with_fewer(plan) else []
    # The login node's limits are meant for it alone.
    own = ["--propagate=NONE", "--open-mode=append"]
    return [*options, _requeue(plan), *spared, *own, *extra]


def _goes_on_with_fewer(plan: contract.Plan) -> bool:
    least = plan.lifecycle.min_learners if plan.lifecycle else None
    return least is not None and plan.resources.nodes > 1 and least < plan.resources.learners


def _requeue(plan: contract.Plan) -> str:
    """Return whether Slurm runs the job again after its node was lost: as the next attempt.

    The processes of the attempt before, which may still run, can publish nothing more.
    """
    allowed = plan.lifecycle is not None and contract.StarterKind.REQUEUE in plan.lifecycle.starters
    return "--requeue" if allowed else "--no-requeue"


def _mails(notify: contract.Notify | None) -> dict[str, str]:
    """Return the options by which Slurm sends mails, if there is no other server for them."""
    if notify is None or notify.email is None or notify.smtp is not None:
        return {}
    kinds = {"started": "BEGIN", "failed": "FAIL", "finished": "END", "plateau": "END"}
    types = dict.fromkeys(kinds[event] for event in notify.on)
    return {"mail-user": notify.email, "mail-type": ",".join(types)}


def _word(name: str, value: object) -> str:
    """Quote for sbatch, which reads its own lines with quotes but without shell expansion.

    Raises:
        PlanError: a line break or other control character, which can't be quoted on one line.
    """
    text = str(value)
    if not text.isprintable():
        raise PlanError(
            f"the sbatch option {name} contains a control character: {text!r}",
            hint="write it on one line, in the manifest's scheduler section or the site's file",
        )
    return shlex.quote(text)


def where(plan: contract.Plan, memory_bytes: int | None) -> dict[str, str | None]:
    """Return the options of a job and of a step that say how long and on which nodes it runs."""
    batch, time_s = plan.batch, plan.resources.time_s
    return {
        "mem": None if memory_bytes is None else f"{-(-memory_bytes // _MEBIBYTE)}M",
        "time": None if time_s is None else format_slurm_time(time_s),
        "partition": batch.partition, "account": batch.account, "qos": batch.qos,
        "constraint": batch.constraint,
    }  # fmt: skip
