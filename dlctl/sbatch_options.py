"""Which of sbatch's options dlctl sets itself, so that no manifest and no site file may. Pure."""

from __future__ import annotations

_LONG: dict[str, str] = {
    "account": "scheduler.account",
    "constraint": "scheduler.constraint",
    "cpus-per-gpu": "cpus",
    "cpus-per-task": "cpus",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "gpus-per-socket": "gpus",
    "gpus-per-task": "gpus",
    "gres": "gpus or scheduler.gres",
    "mem": "memory",
    "mem-per-cpu": "memory",
    "mem-per-gpu": "memory",
    "nodes": "nodes",
    "ntasks": "learners",
    "ntasks-per-gpu": "learners_per_node",
    "ntasks-per-node": "learners_per_node",
    "ntasks-per-tres": "learners_per_node",
    "partition": "scheduler.partition",
    "qos": "scheduler.qos",
    "tasks-per-node": "learners_per_node",
    "time": "time",
    "tres-per-task": "gpus",
    **dict.fromkeys(
        ("array", "chdir", "cluster", "clusters", "comment", "distribution", "error", "help",
         "job-name", "no-kill", "no-requeue", "open-mode", "output", "parsable", "quiet", "requeue",
         "signal", "test-only", "usage", "version", "wait", "workdir", "wrap"), ""),
}  # fmt: skip
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
