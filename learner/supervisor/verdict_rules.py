"""Which line, signal or exit code means which kind of failure: tables, read from top to bottom.

To recognize another kind of failure, add a row. `{id}` and `{site}` in a hint are the training's id
and its site; `{rank}`, in a signal's hint, is the rank of the learner that failed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from dlctl.contract import VerdictKind
from learner.job.slurm import OVER_MEMORY

SEE_LOG = "See its whole log: dlctl logs {id} --learner {rank} --debug"
GO_ON = "Resume from the newest checkpoint: dlctl resume {id}"


@dataclass(frozen=True)
class Rule:
    """What a line means that contains `pattern`."""

    pattern: re.Pattern[str]
    kind: VerdictKind
    hint: str
    reason: str = ""
    """Printed before the line; empty if the line speaks for itself."""


def _rule(pattern: str, kind: VerdictKind, hint: str, reason: str = "", flags: int = 0) -> Rule:
    return Rule(re.compile(pattern, flags), kind, hint, reason)


LEARNER_LINES = (
    _rule(
        r"ModuleNotFoundError: No module named",
        VerdictKind.USER_ERROR,
        "Add its package to `requirements` in the manifest and submit again: dlctl submit "
        "manifest.yml",
    ),
    _rule(
        r"ImportError:",
        VerdictKind.USER_ERROR,
        "Check the module's version on the node; `requirements` in the manifest can name another.",
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
        "Free /dev/shm on that node, or give the DataLoader fewer workers, then resume from the "
        "newest checkpoint: dlctl resume {id}",
    ),
    _rule(
        r"No space left on device|Disk quota exceeded",
        VerdictKind.DISK_FULL,
        "Free space on the node's file system (dlctl delete removes old trainings), then resume "
        "from the newest checkpoint: dlctl resume {id}",
    ),
    _rule(
        r"[Aa]ddress already in use|EADDRINUSE",
        VerdictKind.NETWORK,
        "Another job took the port: submit again.",
    ),
)
"""The last lines of a learner that ended with an exit code."""

LAUNCHER_LINES = (
    Rule(
        OVER_MEMORY,
        VerdictKind.OUT_OF_MEMORY,
        "",  # `learner.supervisor.verdict` computes a hint with the amount to ask for
        "The learners were killed for using more memory than they had asked for",
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
"""The lines that srun prints when Slurm kills a whole step, including the watchdogs."""


@dataclass(frozen=True)
class SignalRule:
    """What it means if a signal killed a learner."""

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
    signal.SIGTERM: SignalRule(VerdictKind.SCHEDULER, "SIGTERM", GO_ON),  # sent on purpose
}
OTHER_SIGNAL = SignalRule(VerdictKind.UNKNOWN, "see its log")

EXIT_CODES = {
    126: ("the program is not executable.", "Run: chmod +x on it, and submit again."),
    127: ("command not found", "Check `framework.command`, and the modules of the site file."),
}
"""A shell's own exit codes: what happened, and a hint. All of them are user errors."""


def first_match(rules: Iterable[Rule], lines: list[str]) -> tuple[Rule, str] | None:
    """Return the first rule that any line matches, and the last line that matches it."""
    for rule in rules:
        for line in reversed(lines):
            if rule.pattern.search(line):
                return rule, line
    return None
