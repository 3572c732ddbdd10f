"""Which evidence means which kind of end: data, tried from top to bottom.

To tell one more kind of failure apart, add a row. `{id}` and `{site}` in a hint are the training's
id and its site.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from dlctl.contract import VerdictKind
from learner.job.slurm import OVER_MEMORY

SEE_LOG = "See its log: dlctl logs"
GO_ON = "Go on from the newest checkpoint: dlctl resume {id}"


@dataclass(frozen=True)
class Rule:
    """What a line means in which `pattern` is found."""

    pattern: re.Pattern[str]
    kind: VerdictKind
    hint: str
    reason: str = ""
    """Goes before the line; nothing where the line says it by itself."""


def _rule(pattern: str, kind: VerdictKind, hint: str, reason: str = "", flags: int = 0) -> Rule:
    return Rule(re.compile(pattern, flags), kind, hint, reason)


LEARNER_LINES = (
    _rule(
        r"ModuleNotFoundError: No module named",
        VerdictKind.USER_ERROR,
        "Add the module to `requirements` in the manifest, then run: dlctl sites setup {site}",
    ),
    _rule(
        r"ImportError:",
        VerdictKind.USER_ERROR,
        "Check the module's version on the node, or run: dlctl sites setup {site}",
    ),
    _rule(
        r"(SyntaxError|IndentationError|TabError):",
        VerdictKind.USER_ERROR,
        "Correct the program and submit again.",
    ),
    _rule(
        r"FileNotFoundError:|No such file or directory",
        VerdictKind.USER_ERROR,
        "Check the path; training data is below $DATA_DIR, the program's own files in $MODEL_DIR.",
    ),
    _rule(
        r"OutOfMemoryError|CUDA out of memory|MemoryError|[Cc]annot allocate memory",
        VerdictKind.OUT_OF_MEMORY,
        "Make the batch smaller, or ask for more with --memory or --gpus.",
    ),
    _rule(
        r"shared memory ?\(shm\)|out of shared memory",  # of DataLoaders' workers
        VerdictKind.OUT_OF_MEMORY,
        "Free /dev/shm on that node, or have the DataLoader use fewer workers, then go on from the "
        "newest checkpoint: dlctl resume {id}",
    ),
    _rule(
        r"No space left on device|Disk quota exceeded",
        VerdictKind.DISK_FULL,
        "Free space on the node's file system (dlctl delete removes old trainings), then go on "
        "from the newest checkpoint: dlctl resume {id}",
    ),
    _rule(
        r"Address already in use",
        VerdictKind.NETWORK,
        "Another job took the port: submit again.",
    ),
)
"""The last lines of a learner that ended with an exit code."""

LAUNCHER_LINES = (
    Rule(
        OVER_MEMORY,
        VerdictKind.OUT_OF_MEMORY,
        "",  # says how much more, see `learner.supervisor.verdict`
        "The learners were killed for using more memory than asked for",
    ),
    _rule(
        r"node failure|node fail|lost connection to node",
        VerdictKind.NODE_LOST,
        GO_ON,
        "A node was lost",
        re.IGNORECASE,
    ),
    _rule(
        r"\*\*\* STEP \S+ ON \S+ CANCELLED AT",
        VerdictKind.SCHEDULER,
        GO_ON,
        "Slurm ended the learners' step",
        re.IGNORECASE,
    ),
)
"""What srun prints when Slurm kills a whole step, watchdogs and all."""


@dataclass(frozen=True)
class SignalRule:
    """What it means that a learner was killed by a signal."""

    kind: VerdictKind
    words: str
    hint: str = SEE_LOG


SIGNALS: dict[int, SignalRule] = {
    signal.SIGILL: SignalRule(
        VerdictKind.USER_ERROR, "illegal instruction: the program is built for another kind of CPU"
    ),
    signal.SIGABRT: SignalRule(VerdictKind.USER_ERROR, "abort"),
    signal.SIGBUS: SignalRule(VerdictKind.OUT_OF_MEMORY, "bus error: often a full /dev/shm"),
    signal.SIGSEGV: SignalRule(VerdictKind.USER_ERROR, "segmentation fault"),
    signal.SIGTERM: SignalRule(VerdictKind.SCHEDULER, "SIGTERM", GO_ON),  # somebody wanted it
}
OTHER_SIGNAL = SignalRule(VerdictKind.UNKNOWN, "see its log")

EXIT_CODES = {
    126: ("the program is not executable.", "Run: chmod +x on it, and submit again."),
    127: ("command not found", "Check `framework.command`, and the modules of the site file."),
}
"""A shell's own exit codes: what was seen, and a hint. All of them are the user's errors."""


def first_match(rules: Iterable[Rule], lines: list[str]) -> tuple[Rule, str] | None:
    """Return the first rule that a line matches, and the last such line."""
    for rule in rules:
        for line in reversed(lines):
            if rule.pattern.search(line):
                return rule, line
    return None
