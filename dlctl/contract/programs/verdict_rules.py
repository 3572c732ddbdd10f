"""The kind of failure that a line, signal or exit code means: one table, read from the top.

To recognize another failure, add a row to `RULES`. `{id}` and `{site}` in a hint are the training's
id and its site, `{rank}` is the rank of the learner that failed; `{memory}`, `{time}`, `{limits}`
say how to go on with more (`advice`). Real lines that each row has to recognize are in
`tests/unit/learner/supervisor/recorded/`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dlctl.contract.plan import Plan
from dlctl.contract.programs.advice import filled
from dlctl.contract.programs.tracebacks import last_chain
from dlctl.contract.states import VerdictKind

SEE_LOG = "See its whole log: dlctl logs {id} --learner {rank} --debug"
NEWEST = "from the newest checkpoint"
"""In a hint, where `without_checkpoint` finds it."""
GO_ON = f"Resume {NEWEST}: dlctl resume {{id}}"
CHECK_SITE = "Check the site, then resume: dlctl doctor {site}; dlctl resume {id}"


def without_checkpoint(hint: str) -> str:
    """Return a hint for a training that has no checkpoint from which it could go on."""
    return hint.replace(NEWEST, "from the beginning (there is no checkpoint)")


class Place(enum.Flag):
    """The place of a line."""

    LEARNER = enum.auto()
    """The last lines of a learner that ended with an exit code, or crashed."""
    LAUNCHER = enum.auto()
    """The lines of srun or mpirun, when a whole step was killed with its watchdogs."""
    JOB = enum.auto()
    """The last lines of the output of a job that left no verdict; the login side reads them."""


class NodeSignal(enum.IntEnum):
    """Signals as the nodes' Linux numbers them; this machine may number them otherwise."""

    SIGHUP = 1
    SIGINT = 2
    SIGILL = 4
    SIGABRT = 6
    SIGBUS = 7
    SIGFPE = 8
    SIGKILL = 9
    SIGSEGV = 11
    SIGTERM = 15
    SIGXCPU = 24
    SIGXFSZ = 25


@dataclass(frozen=True)
class Rule:
    """The meaning of a line that contains `pattern`; a group `host` in it names the bad node."""

    pattern: re.Pattern[str]
    places: Place
    kind: VerdictKind
    hint: str
    sentence: str = ""
    """Printed before the line; empty if the line speaks for itself."""
    beside: re.Pattern[str] | None = None
    """A line that must be there, too, before or after; the line alone does not mean this."""


def _rule(
    pattern: str, places: Place, kind: VerdictKind, hint: str, sentence: str = "", beside: str = ""
) -> Rule:
    other = re.compile(beside) if beside else None
    return Rule(re.compile(pattern), places, kind, hint, sentence, other)


LEARNER, LAUNCHER, JOB = Place
KIND = VerdictKind
OVER_MEMORY = re.compile(
    r"(?i)(?:slurmstepd-(?P<host>[\w.-]+): .*)?"
    r"(?:exceeded (?:job )?memory limit|oom.?kill|out of memory)"
)
"""How Slurm says that it killed a step for its memory."""

UNREACHED = re.compile(
    r"Task launch for \S+ failed on node (?P<host>[\w.-]+): "
    r".*(?i:connect|communicat|receive failure|zero bytes)"
)
"""How srun says that a node's slurmd did not answer when the tasks were to start."""

UNMAPPED = re.compile(r"failed to map segment from shared object")
"""How glibc says, without the reason, that it can't load a library."""

NO_GPU = re.compile(r"No CUDA GPUs are available|no CUDA-capable device is detected")
"""The node's fault only if the training has asked for GPUs."""

RULES = (
    # What Slurm prints when it ends a job or a step.
    _rule(
        r"DUE TO TIME LIMIT", LAUNCHER | JOB, KIND.TIME_LIMIT,
        f"Resume {NEWEST}, {{time}}",
        "The time limit ended it before it could save",
    ),
    _rule(
        r"DUE TO PREEMPTION", LAUNCHER | JOB, KIND.PREEMPTED, GO_ON,
        "Slurm gave its nodes to another job before it could save",
    ),
    _rule(
        OVER_MEMORY.pattern, LAUNCHER | JOB, KIND.OUT_OF_MEMORY,
        "{memory}",
        "It was killed for using more memory than it had asked for",
    ),
    _rule(
        r"DUE TO NODE FAILURE|[Nn]ode fail(?:ure|ed)?\b(?: on (?P<host>[\w.-]+)\b(?!\[))?"
        r"|[Ll]ost connection to node|has lost communication with (?:a remote|its) daemon",
        LAUNCHER | JOB, KIND.NODE_LOST, GO_ON, "A node was lost",
    ),
    _rule(
        UNREACHED.pattern, LAUNCHER | JOB, KIND.NODE_LOST, GO_ON,
        "Slurm could not reach one of the job's nodes",
    ),
    _rule(
        r"DUE TO JOB REQUEUE|\*\*\* (?i:STEP) \S+ ON \S+ CANCELLED AT", LAUNCHER,
        KIND.SCHEDULER, GO_ON, "Slurm ended the learners' step",
    ),
    _rule(
        r"has detected an attempt to run as root", LAUNCHER, KIND.SITE,
        "Let jobs run as an ordinary user, or set "
        "OMPI_ALLOW_RUN_AS_ROOT: 1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: 1 in "
        "`environment.variables` of {site}'s file; then: dlctl resume {id}",
        "Open MPI refuses to start anything as root",
    ),
    # Faults of a node: what else the lines say is their consequence.
    _rule(
        r"uncorrectable (?:ECC|NVLink) error|ECC_UNCORRECTABLE|fallen off the bus|GPU is lost"
        r"|Xid \(PCI:[^)]*\): (?:48|6[2-4]|74|79|9[245]|119|120|14\d)\b"
        r"|Unable to determine the device handle for GPU|CUDA error: hardware stack error"
        r"|CUDA-capable devices? ?(?:\(s\) is/are |are )busy or unavailable"
        r"|Failed to initialize NVML(?!: Driver/library)|over nvlink or a hardware error"
        r"|system not yet initialized|" + NO_GPU.pattern,
        LEARNER | JOB, KIND.GPU_ERROR,
        "Report the node to the site's administrators, and resume on others: dlctl resume {id}",
    ),
    # Resources that ran out.
    _rule(
        r"(?:CUDA|HIP|XPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError"
        r"|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|Cuda failure (?:2 )?'out of memory'"
        r"|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|OOM when allocating tensor"
        r"|RESOURCE_EXHAUSTED: Out of memory",
        LEARNER, KIND.GPU_OUT_OF_MEMORY,
        "Make the batch smaller, or ask for GPUs with more memory.",
    ),
    _rule(
        r"shared memory ?\(shm\)|(?<!CUDA error: )out of shared memory",  # of DataLoaders' workers
        LEARNER, KIND.OUT_OF_MEMORY,
        "Free /dev/shm on that node, or give the DataLoader fewer workers, then resume "
        f"{NEWEST}: dlctl resume {{id}}",
    ),
    _rule(
        r"\b(?:_Array)?MemoryError\b|[Cc]annot allocate memory|std::bad_alloc"
        r"|DataLoader worker \(pid \d+\) is killed by signal: Killed"
        r"|CPUAllocator: (?:can't allocate|not enough) memory",
        LEARNER, KIND.OUT_OF_MEMORY,
        "{memory}",
    ),
    _rule(
        r"No space left on device|[Dd]isk quota exceeded"
        r"|PytorchStreamWriter failed writing file|enforce fail at inline_container",
        LEARNER | LAUNCHER | JOB, KIND.DISK_FULL,
        "Free space, or files (df -i), there: `dlctl du {site}` shows what could go; then resume "
        f"{NEWEST}: dlctl resume {{id}}",
        "A file system is full, or a quota used up",
    ),
    _rule(
        UNMAPPED.pattern, LEARNER, KIND.SITE,
        "Its folder may be mounted with `noexec`, which `findmnt -T FOLDER` shows: keep it "
        "elsewhere; or `ulimit -v` is too low. {limits}",
    ),
    _rule(
        r"\[Errno 27\]|\bwrit(?:e|ing)\b.*: File too large$", LEARNER, KIND.SITE, "{limits}"
    ),
    # The training itself.
    _rule(
        r"\bFloatingPointError\b|(?i:\bloss\b[^.:]{0,40}\b(?:is|was|became) (?:nan|inf)\b)"
        r"|returned nan values in its|[Ll]oss scale already at minimum|NaN loss"
        r"|contains either `inf`, `nan`|is non-finite, so it cannot be clipped"
        r"|but found invalid values",
        LEARNER, KIND.NOT_A_NUMBER,
        "Lower the learning rate or clip the gradients, and submit again.",
    ),
    _rule(
        r"ModuleNotFoundError: No module named", LEARNER, KIND.USER_ERROR,
        "Add its package to `requirements` in the manifest, then: dlctl resume {id} --code",
    ),
    _rule(
        r"ImportError:", LEARNER, KIND.USER_ERROR,
        "Check the module's version on the node; `requirements` in the manifest can name another.",
    ),
    _rule(
        r"(?:SyntaxError|IndentationError|TabError):", LEARNER, KIND.USER_ERROR,
        "Correct the program and submit again.",
    ),
    _rule(
        r"Default process group has not been initialized", LEARNER, KIND.USER_ERROR,
        "Call torch.distributed.init_process_group first; the built-in loop takes the model "
        "without DistributedDataParallel.",
    ),
    _rule(
        r"device-side assert triggered", LEARNER, KIND.USER_ERROR,
        "An index or a label is out of range: with CUDA_LAUNCH_BLOCKING=1 the traceback shows it.",
    ),
    _rule(
        r"no kernel image is available for execution", LEARNER, KIND.USER_ERROR,
        "Its torch was built for other GPUs: install another in the site's environment.",
    ),
    _rule(  # a fault of the GPU or of a kernel: nobody can tell, so that it may be retried
        r"unspecified launch failure|CUDA error: unknown error|_STATUS_EXECUTION_FAILED",
        LEARNER, KIND.UNKNOWN, GO_ON,
    ),
    # The site.
    _rule(
        r"[Ss]tale (?:NFS )?file handle|Input/output error|Transport endpoint is not connected"
        r"|after transport endpoint shutdown|Driver/library version mismatch"
        r"|Read-only file system|Remote I/O error|version `GLIBC\S*' not found"
        r"|CUDA driver version is insufficient",
        LEARNER, KIND.SITE, CHECK_SITE,
    ),
    _rule(
        r"FileNotFoundError:|^(?!.*NCCL INFO).*No such file or directory", LEARNER, KIND.USER_ERROR,
        "Check the path; training data is below $DATA_DIR, the program's own files in $MODEL_DIR.",
    ),
    # Mostly consequences of what happened to another learner: `CONSEQUENCES`.
    _rule(
        r"Watchdog caught collective operation timeout|[Mm]onitored ?[Bb]arrier timeout"
        r"|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|error: Timeout waiting for key|wait timeout after \d+ms|NCCL communicator was aborted"
        r"|watchdog got stuck for|due to collective timeout",
        LEARNER, KIND.HUNG,
        "It waited for another learner: see what each did last, dlctl logs {id} --debug",
    ),
    _rule(
        r"[Aa]ddress already in use|EADDRINUSE", LEARNER, KIND.NETWORK,
        "Another program had the port. Let yours listen at $MASTER_PORT, then: dlctl resume {id} "
        "--code; if it already does, just try again: dlctl resume {id}",
    ),
    _rule(
        r"MPI_ERR_(?:INTERN|UNKNOWN|OTHER)\b|Unable to find reachable pairing"
        r"|MPI process is unreachable", LEARNER, KIND.NETWORK,
        "Name the network of the nodes in `environment.variables` of the site file, such as "
        "OMPI_MCA_btl_tcp_if_include: eth0, then resume: dlctl resume {id}",
        beside=r"Unable to find reachable pairing|unable to reach each other for|is unreachable",
    ),
    _rule(
        r"Connection (?:reset|closed|aborted) by |Connection (?:refused|timed out)"
        r"|No route to host|Network is unreachable|nccl(?:Remote|System)Error"
        r"|remote process exited or there was a network error|Got completion from peer"
        r"|client socket has timed out|Dist(?:Network|Store)Error|BrokenPipeError"
        r"|[Nn]ame resolution|Name or service not known|Could not resolve host"
        r"|Max retries exceeded with url|Gloo connectFullMesh failed"
        r"|[Rr]ead(?: operation)? timed out"
        r"|\b50[234] (?:Server Error|Bad Gateway|Service (?:Temporarily )?Unavailable)",
        LEARNER, KIND.NETWORK, GO_ON,
    ),
)  # fmt: skip

CONSEQUENCES = frozenset({KIND.NETWORK, KIND.HUNG})
"""Kinds that learners report of each other: the fault of another learner counts more."""


@dataclass(frozen=True)
class End:
    """The meaning of a signal or an exit code."""

    kind: VerdictKind
    words: str
    hint: str = SEE_LOG


SIGNALS: dict[int, End] = {
    NodeSignal.SIGILL: End(
        KIND.USER_ERROR, "illegal instruction: the program is built for another kind of CPU"
    ),
    # A driver's or MPI's fault as well as the program's: it may be retried.
    NodeSignal.SIGABRT: End(KIND.UNKNOWN, "abort"),
    NodeSignal.SIGBUS: End(KIND.OUT_OF_MEMORY, "bus error: often a full /dev/shm"),
    NodeSignal.SIGFPE: End(KIND.USER_ERROR, "arithmetic error"),
    NodeSignal.SIGSEGV: End(KIND.UNKNOWN, "segmentation fault"),
    NodeSignal.SIGXCPU: End(KIND.SITE, "it has used up its processor time, ulimit -t", "{limits}"),
    NodeSignal.SIGXFSZ: End(KIND.SITE, "it wrote a larger file than it may, ulimit -f", "{limits}"),
    NodeSignal.SIGTERM: End(KIND.SCHEDULER, "SIGTERM", GO_ON),  # sent on purpose
}
"""What a signal means that killed a learner which printed no line of `RULES`."""
OTHER_SIGNAL = End(KIND.UNKNOWN, "see its log")
SENT_ON_PURPOSE = frozenset(
    {NodeSignal.SIGKILL, NodeSignal.SIGTERM, NodeSignal.SIGINT, NodeSignal.SIGHUP}
)
"""Signals that somebody sends: the lines that the program printed before don't explain them."""


def signal_in(exit_code: int | None) -> int | None:
    """Return the signal by which a shell's exit code says that its program was killed, or None."""
    number = (exit_code or 0) - 128
    return number if number in SIGNALS or number == NodeSignal.SIGKILL else None


AGAIN, NEVER = 75, 78
"""EX_TEMPFAIL and EX_CONFIG of sysexits.h: a program's own word on another attempt."""

EXIT_CODES = {
    AGAIN: End(KIND.TRY_AGAIN, "the program asks for another attempt", GO_ON),
    NEVER: End(KIND.USER_ERROR, "the program says that another attempt would fail, too"),
    126: End(
        KIND.USER_ERROR, "the program is not executable",
        "Run: chmod +x on it, and submit again.",
    ),
    127: End(
        KIND.USER_ERROR, "command not found",
        "Check `framework.command`, and the modules of the site file.",
    ),
}  # fmt: skip
"""What an exit code means, whatever the program printed."""

_TOLD_BEFORE = frozenset({KIND.GPU_ERROR, KIND.DISK_FULL, KIND.SITE, KIND.OUT_OF_MEMORY})
"""Kinds that a program may tell of before it fails in another way."""


def rules_for(place: Place) -> list[Rule]:
    """Return the rows for one place."""
    return [rule for rule in RULES if place in rule.places]


def first_match(place: Place, lines: Iterable[str]) -> tuple[Rule, str] | None:
    """Return the first rule that any line matches, and the last line that matches it.

    If a learner printed a traceback, what it had printed before, such as the warning of a fault
    that it survived, counts only if it tells of a broken node or a full disk.
    """
    newest_first = list(lines)[::-1]
    last_error = newest_first
    if place is Place.LEARNER and (chain := last_chain(newest_first[::-1])):
        last_error = chain[::-1]
    for rule in rules_for(place):
        if rule.beside is not None and not any(map(rule.beside.search, newest_first)):
            continue
        for line in newest_first if rule.kind in _TOLD_BEFORE else last_error:
            if rule.pattern.search(line):
                return rule, line
    return None


def blamed_host(rule: Rule, line: str) -> str:
    """Return the host that a line names, or an empty text."""
    found = rule.pattern.search(line)
    return (found.groupdict().get("host") or "") if found else ""


JOB_LINES = 20
"""How many lines of the output of a job without a verdict are read."""
_MEMORY = re.compile(r"exceeded (?:job )?memory limit \((\d+) > (\d+)\)")


class Explanation(NamedTuple):
    """Why a job ended, and what to do next."""

    reason: str
    hint: str
    kind: VerdictKind


def explain(lines: list[str], plan: Plan) -> Explanation | None:
    """Return why a job ended, or None if the last lines of its output don't say it."""
    found = first_match(Place.JOB, lines)
    if found is None:
        return None
    rule, line = found
    reason = rule.sentence[:1].lower() + rule.sentence[1:] or line.strip()
    over, is_memory = 1.0, rule.kind is VerdictKind.OUT_OF_MEMORY
    if is_memory and (sizes := list(filter(None, map(_MEMORY.search, lines)))):
        used, limit = map(int, sizes[-1].groups())
        over = used / max(1, limit)
        reason += f" ({used // 2**20} MiB; asked for {limit // 2**20} MiB)"
    return Explanation(reason, filled(rule.hint, plan, over=over), rule.kind)
