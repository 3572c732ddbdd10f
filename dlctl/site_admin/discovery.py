"""Inspect a site: a script that asks, and a parser of its answer. Pure.

The script (`templates/sites/discover.sh`) asks Slurm for fixed formats, so that one parser serves
all versions, and frames each answer, so that a login shell's own output is never taken for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import SiteError
from dlctl.package_data import data_path

MINIMUM_PYTHON = (3, 10)
_MARK = "==dlctl== "
_MIB = 1024**2
_UNUSABLE = ("down", "drain", "fail", "error", "unknown", "maint", "power_down", "inval")
_SUFFIXES = "*~#!%$@^-+"
"""Slurm's marks after a node's state: not responding, power saving, reboot, …"""


@dataclass(frozen=True)
class CommandAnswer:
    """The answer to one question."""

    text: str
    exit_code: int
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NodeGroup:
    """Identical nodes of one partition."""

    count: int
    cpus: int
    memory_bytes: int | None
    gpus: int
    gpu_type: str | None
    state: str

    @property
    def usable(self) -> bool:
        """Return whether a job could run on these nodes, now or after others."""
        return not self.state.startswith(_UNUSABLE)


@dataclass(frozen=True)
class FoundPartition:
    """One partition as sinfo shows it."""

    name: str
    default: bool
    available: str
    """`up`, `down`, `drain` or `inact`."""
    max_time_s: int | None
    max_nodes: int | None
    groups: list[NodeGroup]


@dataclass(frozen=True)
class FoundPython:
    """One interpreter that started."""

    path: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.version))} ({self.path})"


@dataclass(frozen=True)
class Discovered:
    """What a site answered about itself."""

    home: str
    user: str
    host: str
    slurm_folder: str | None
    """The folder of Slurm's commands; None: there is no Slurm."""
    slurm_found: str
    """`path` (the PATH of a non-login shell), `folder`, `module`, or nothing."""
    slurm_version: str
    cluster: str
    partitions: list[FoundPartition]
    default_account: str | None
    accounts: list[str]
    accounting: bool
    mpi_types: list[str]
    mpi_default: str | None
    pythons: list[FoundPython]
    modules: list[str]
    """The kind (`Lmod`, `Environment Modules`) first, then modules that may be useful."""
    mpirun: str | None
    free_bytes: int | None
    """On the home directory's file system."""
    quota: str
    alloc_nodes: dict[str, str]
    """Partition → the nodes from which its jobs may be submitted, if these are not all."""
    problems: list[str]
    """Questions that got no answer, one sentence each."""


def discovery_script() -> str:
    """Return the questions, as POSIX shell."""
    return (data_path("templates") / "sites" / "discover.sh").read_text(encoding="utf-8")


def parse_discovery(text: str) -> Discovered:
    """Return what the answers say; a question without an answer is a problem, not a failure.

    Raises:
        SiteError: the answer is cut off, or does not come from the script.
    """
    answers = _frames(text)
    account = _pairs(answers.get("account"))
    if "home" not in account:
        raise SiteError("the site's answer holds no account", hint="run the same command again")
    slurm, config = _pairs(answers.get("slurm")), _pairs(answers.get("config"))
    accounts = _rows(answers.get("assoc"))
    return Discovered(
        home=account["home"],
        user=account.get("user", ""),
        host=account.get("host", ""),
        slurm_folder=slurm.get("folder"),
        slurm_found=slurm.get("found", ""),
        slurm_version=_text(answers.get("version")).removeprefix("slurm-wlm").removeprefix("slurm").strip(),
        cluster=config.get("ClusterName", ""),
        partitions=parse_sinfo(_text(answers.get("sinfo"))),
        default_account=_text(answers.get("default_account")) or None,
        accounts=list(dict.fromkeys(row[0] for row in accounts if row[0])),
        accounting="accounting" in answers and answers["accounting"].exit_code == 0,
        mpi_types=parse_mpi_types(answers.get("mpi")),
        mpi_default=_unless_none(config.get("MpiDefault")),
        pythons=[p for row in _rows(answers.get("pythons")) if (p := _python(row))],
        modules=_lines(_text(answers.get("modules")).removeprefix("kind=")),
        mpirun=_text(answers.get("mpirun")).split("\n")[0] or None,
        free_bytes=_free_bytes(_text(answers.get("df"))),
        quota=_text(answers.get("quota")),
        alloc_nodes={
            row[0]: row[1] for row in _rows(answers.get("alloc_nodes"))
            if len(row) > 1 and row[1] not in ("ALL", "(null)")
        },
        problems=_problems(answers),
    )  # fmt: skip


def _frames(text: str) -> dict[str, CommandAnswer]:
    answers: dict[str, CommandAnswer] = {}
    name, body, errors, code = "", list[str](), list[str](), -1
    for line in lines_of(text):
        if not line.startswith(_MARK):
            (errors if line.startswith("! ") else body).append(line.removeprefix("! "))
            continue
        word = line[len(_MARK) :].strip()
        if word.startswith("rc "):
            code = _number(word[3:]) or 0
            continue
        if name:
            answers[name] = CommandAnswer("\n".join(body).strip("\n"), code, errors)
        if word == "end":
            return answers
        name, body, errors, code = word, [], [], -1
    raise SiteError(
        "the site's answer was cut off" if answers else "the site did not run the questions",
        hint="run the same command again; see whether `ssh HOST /bin/sh -c true` works",
    )


def _text(answer: CommandAnswer | None) -> str:
    return answer.text.strip() if answer and answer.exit_code == 0 else ""


def _pairs(answer: CommandAnswer | None) -> dict[str, str]:
    lines = (line.partition("=") for line in lines_of(_text(answer)))
    return {name.strip(): value.strip() for name, sign, value in lines if sign}


def _rows(answer: CommandAnswer | None) -> list[list[str]]:
    return [line.split("|") for line in lines_of(_text(answer)) if "|" in line]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in lines_of(text) if line.strip()]


def _number(text: str) -> int | None:
    match = re.match(r"\d+", text.strip())
    return int(match.group()) if match else None


def _unless_none(word: str | None) -> str | None:
    return None if word in (None, "", "none", "(null)") else word


def _python(row: list[str]) -> FoundPython | None:
    if not re.fullmatch(r"\d+(\.\d+)+", row[0]):
        return None
    return FoundPython(row[1], tuple(int(part) for part in row[0].split(".")))


def _free_bytes(df_line: str) -> int | None:
    match = re.search(r"\s(\d+)\s+\d+%\s", df_line)
    return int(match.group(1)) * 1024 if match else None


def _problems(answers: dict[str, CommandAnswer]) -> list[str]:
    asked = {"version": "sinfo --version", "sinfo": "sinfo", "config": "scontrol show config",
             "assoc": "sacctmgr", "mpi": "srun --mpi=list"}  # fmt: skip
    found = []
    for name, command in asked.items():
        answer = answers.get(name)
        if answer and (answer.exit_code or (not answer.text and name != "assoc")):
            why = answer.errors[-1] if answer.errors else f"exit code {answer.exit_code}"
            found.append(f"{command} gave no answer: {why}")
    return found


def parse_sinfo(text: str) -> list[FoundPartition]:
    """Return the partitions of `sinfo --exact --format='%P|%a|%l|%s|%D|%c|%m|%G|%T'`."""
    found: dict[str, FoundPartition] = {}
    for line in lines_of(text):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 9 or not cells[0]:
            continue
        name = cells[0].removesuffix("*")
        known = found.get(name) or FoundPartition(
            name, cells[0].endswith("*"), cells[1], parse_time_limit(cells[2]),
            parse_max_nodes(cells[3]), [],
        )  # fmt: skip
        found[name] = replace(known, groups=[*known.groups, _node_group(cells)])
    return list(found.values())


def _node_group(cells: list[str]) -> NodeGroup:
    gpus, gpu_type = parse_gpus(cells[7])
    memory_mib = _number(cells[6])
    return NodeGroup(
        count=_number(cells[4]) or 0,
        cpus=_number(cells[5]) or 0,
        memory_bytes=memory_mib * _MIB if memory_mib and memory_mib > 1 else None,
        gpus=gpus,
        gpu_type=gpu_type,
        state=cells[8].rstrip(_SUFFIXES).lower(),
    )


def parse_time_limit(text: str) -> int | None:
    """Return Slurm's `D-HH:MM:SS`, `HH:MM:SS`, `MM:SS` or minutes in seconds; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if not match:
        return None
    days, *clock = match.groups()
    parts = [int(part) for part in clock if part is not None]
    if days is not None:
        weights = (3600, 60, 1)
    else:
        weights = {1: (60, 1, 1), 2: (60, 1, 1), 3: (3600, 60, 1)}[len(parts)]
    return int(days or 0) * 86400 + sum(p * w for p, w in zip(parts, weights, strict=False)) or None


def parse_max_nodes(text: str) -> int | None:
    """Return the upper end of sinfo's `1-4`; None for `1-infinite` and words."""
    last = text.strip().rpartition("-")[2]
    return int(last) if last.isdecimal() and int(last) > 0 else None


def parse_gpus(gres: str) -> tuple[int, str | None]:
    """Return how many GPUs `gpu:a100:4(S:0-1),shard:8` means, and their type if there is one."""
    count, types = 0, []
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = part.strip().split(":")
        if name != "gpu":
            continue
        number = rest[-1] if rest and rest[-1].isdecimal() else ""
        types += rest[:-1] if number else rest
        count += int(number or 1)
    return count, types[0] if len(set(types)) == 1 else None


def parse_mpi_types(answer: CommandAnswer | None) -> list[str]:
    """Return the plug-ins that `srun --mpi=list` names; some versions print to standard error."""
    if answer is None:
        return []
    types = []
    for line in [*lines_of(answer.text), *answer.errors]:
        words = line.removeprefix("srun:").strip()
        listed = words.partition(":")[2].split(",") if words.startswith("specific ") else [words]
        types += [word.strip() for word in listed if re.fullmatch(r"[a-z][a-z0-9_]*", word.strip())]
    return list(dict.fromkeys(types))
