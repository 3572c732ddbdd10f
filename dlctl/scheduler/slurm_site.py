"""Read what a login node answers about its Slurm to `templates/schedulers/slurm-site.sh`. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from dlctl.contract.ground.safe_text import lines_of
from dlctl.scheduler.offer import (
    Answer,
    Answers,
    FoundPartition,
    NodeGroup,
    Offer,
    leading_number,
)
from dlctl.scheduler.usage import clock_s

_MIB = 1024**2
_SUFFIXES = "*~#!%$@^-+"
"""Slurm's marks after a node's state: not responding, power saving, reboot, …"""
_ASKED = {"version": "sinfo --version", "sinfo": "sinfo", "config": "scontrol show config",
          "assoc": "sacctmgr", "mpi": "srun --mpi=list"}  # fmt: skip


def read_offer(answers: Answers) -> Offer | None:
    """Return what Slurm offers; None if there is none."""
    slurm, config = answers["slurm"].pairs, answers["config"].pairs
    if "folder" not in slurm:
        return None
    folder, version = slurm["folder"], answers["version"].said
    version = version.removeprefix("slurm-wlm").removeprefix("slurm").strip() or "?"
    mpi_types = parse_mpi_types(answers["mpi"])
    pmix = [each for each in mpi_types if each.startswith("pmix")]  # what Open MPI speaks
    mpi = next(iter(sorted(pmix, key="pmix".__ne__)), None)
    return Offer(
        title=f"Slurm {version} in {folder}",
        path=None if slurm.get("found") == "path" else folder,
        cluster=config.get("ClusterName", ""),
        partitions=parse_sinfo(answers["sinfo"].said),
        accounts=list(dict.fromkeys(row[0] for row in answers["assoc"].rows if row[0])),
        default_account=answers["default_account"].said or None,
        accounting=answers["accounting"].exit_code == 0,
        launcher="srun" if mpi else "mpirun",
        mpi=mpi,
        mpi_types=mpi_types,
        mpi_default=_unless_none(config.get("MpiDefault")),
        submit_hosts={
            row[0]: row[1] for row in answers["alloc_nodes"].rows
            if row[1] not in ("ALL", "(null)")
        },
        problems=_problems(answers),
    )  # fmt: skip


def _unless_none(word: str | None) -> str | None:
    return None if word in (None, "", "none", "(null)") else word


def _problems(answers: Answers) -> list[str]:
    found = []
    for name, command in _ASKED.items():
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
    memory_mib = leading_number(cells[6])
    return NodeGroup(
        count=leading_number(cells[4]) or 0,
        cpus=leading_number(cells[5]) or 0,
        memory_bytes=memory_mib * _MIB if memory_mib and memory_mib > 1 else None,
        gpus=gpus,
        gpu_type=gpu_type,
        state=cells[8].rstrip(_SUFFIXES).lower(),
    )


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
    for line in [*lines_of(answer.text), *answer.errors]:
        words = line.removeprefix("srun:").strip()
        listed = words.partition(":")[2].split(",") if words.startswith("specific ") else [words]
        types += [word.strip() for word in listed if re.fullmatch(r"[a-z][a-z0-9_]*", word.strip())]
    return list(dict.fromkeys(types))
