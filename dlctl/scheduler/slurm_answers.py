"""Read what Slurm's commands answer about a site and about what its jobs have used. Pure."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from datetime import datetime

from dlctl.contract.ground.safe_text import lines_of
from dlctl.scheduler.base import Usage
from dlctl.scheduler.offer import Answer, Answers, FoundPartition, NodeGroup, Offer, leading_number
from dlctl.scheduler.rows import plain

USAGE_FIELDS = "JobID,Submit,Start,End,TotalCPU,MaxRSS"
_MIB = 1024**2
_SUFFIXES = "*~#!%$@^-+"
"""Slurm's marks after a node's state: not responding, power saving, reboot, …"""
QUESTIONS = {
    "slurm": "printf '%s\\n' \"$slurm\"",
    "version": "limit 10 sinfo --version",
    "sinfo": "limit 20 sinfo --noheader --exact --format='%P|%a|%l|%s|%D|%c|%m|%G|%T'",
    "config": "limit 20 scontrol show config",
    "alloc_nodes": "allocating_nodes",
    "assoc": "limit 20 sacctmgr --noheader --parsable2 show assoc where user=\"$(id -un)\""
             " format=Account,Partition",
    "default_account": "limit 20 sacctmgr --noheader --parsable2 show user \"$(id -un)\""
                       " format=DefaultAccount",
    "accounting": "limit 20 sacct --noheader --allocations --starttime now --format=JobID",
    "mpi": "limit 10 srun --mpi=list",
}  # fmt: skip
_MATTERS = {"version": "sinfo --version", "sinfo": "sinfo", "config": "scontrol show config",
            "assoc": "sacctmgr", "mpi": "srun --mpi=list"}  # fmt: skip
"""Those whose lack of an answer is told, and by what name."""
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+(?::\d+){0,2}(?:\.\d+)?)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")


def read_offer(answers: Answers) -> Offer | None:
    """Return what Slurm offers; None if there is none."""
    slurm, config = answers["slurm"].pairs, answers["config"].pairs
    if "folder" not in slurm:
        return None
    folder, version = slurm["folder"], answers["version"].output
    version = version.removeprefix("slurm-wlm").removeprefix("slurm").strip() or "?"
    mpi_types = parse_mpi_types(answers["mpi"])
    pmix = [each for each in mpi_types if each.startswith("pmix")]  # what Open MPI speaks
    mpi = next(iter(sorted(pmix, key="pmix".__ne__)), None)
    return Offer(
        title=f"Slurm {version} in {folder}",
        path=None if slurm.get("found") == "path" else folder,
        cluster=config.get("ClusterName", ""),
        partitions=parse_sinfo(answers["sinfo"].output),
        accounts=list(dict.fromkeys(row[0] for row in answers["assoc"].rows if row[0])),
        default_account=answers["default_account"].output or None,
        accounting=answers["accounting"].exit_code == 0,
        launcher="srun" if mpi else "mpirun",
        mpi=mpi,
        mpi_types=mpi_types,
        mpi_default=plain(config.get("MpiDefault", "")) or "none",
        submit_hosts={
            row[0]: row[1] for row in answers["alloc_nodes"].rows
            if row[1] not in ("ALL", "(null)")
        },
        problems=_problems(answers),
    )  # fmt: skip


def _problems(answers: Answers) -> list[str]:
    found = []
    for name, command in _MATTERS.items():
        answer = answers.get(name)
        if answer and (answer.exit_code or (not answer.text and name != "assoc")):
            why = (lines_of(answer.errors.strip()) or [f"exit code {answer.exit_code}"])[-1]
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
    memory_mib = leading_number(cells[6])
    memory_bytes = memory_mib * _MIB if memory_mib and memory_mib > 1 else None
    return NodeGroup(
        leading_number(cells[4]) or 0, leading_number(cells[5]) or 0, memory_bytes, gpus, gpu_type,
        state=cells[8].rstrip(_SUFFIXES).lower(),
    )  # fmt: skip


def parse_time_limit(text: str) -> int | None:
    """Return Slurm's `D-HH:MM:SS`, `HH:MM:SS`, `MM:SS` or minutes in seconds; None for no limit."""
    clock = text.strip() if ":" in text or "-" in text else f"{text.strip()}:00"
    return int(clock_s(clock) or 0) or None


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


def parse_mpi_types(answer: Answer) -> list[str]:
    """Return the plug-ins that `srun --mpi=list` names; some versions print to standard error."""
    types = []
    for line in lines_of(f"{answer.text}\n{answer.errors}"):
        words = line.removeprefix("srun:").strip()
        listed = words.partition(":")[2].split(",") if words.startswith("specific ") else [words]
        types += [word.strip() for word in listed if re.fullmatch(r"[a-z][a-z0-9_]*", word.strip())]
    return list(dict.fromkeys(types))


def parse_usage(stdout: str, unit: str) -> dict[str, Usage]:
    """Return the usage of each job, from the rows of the jobs and of their steps.

    Times are Unix seconds, as `SLURM_TIME_FORMAT=%s` asks for.
    """
    found: dict[str, Usage] = {}
    for line in stdout.split("\n"):
        cells = [cell.strip() for cell in line.split(unit)]
        if len(cells) != USAGE_FIELDS.count(",") + 1 or not cells[0][:1].isdecimal():
            continue
        job_id, _, step = cells[0].partition(".")
        before = found.get(job_id, Usage())
        memory = max(before.memory_bytes or 0, _bytes(cells[5])) or None
        if step:
            found[job_id] = before._replace(memory_bytes=memory)
        else:
            submitted, started, ended = (_time(cell) for cell in cells[1:4])
            found[job_id] = Usage(submitted, started, ended, clock_s(cells[4]), memory)
    return found


_STARTS = re.compile(r"Job \d+ to start at (\S+)")


def parse_start(stdout: str, stderr: str) -> float | None:
    """Return the seconds from the clock on standard output to when a tested job would start."""
    match = _STARTS.search(stderr)
    with contextlib.suppress(ValueError, IndexError):
        now = datetime.fromisoformat(stdout.split()[-1])
        if match:
            return max(0.0, (datetime.fromisoformat(match[1]) - now).total_seconds())
    return None


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() and int(text) else None


def clock_s(text: str) -> float | None:
    """Return the seconds of `days-[hours[:minutes[:seconds]]]` or `[hours:]minutes:seconds`."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, clock = float(match[1] or 0), [float(part) for part in match[2].split(":")]
    hours, minutes, seconds = [*clock, 0, 0][:3] if match[1] else [0, 0, *clock][-3:]
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    return round(float(match[1]) * 1024 ** "_KMGTP".index(match[2] or "_")) if match else 0
