"""Parse a site's `du` and `df`: what takes room there. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dlctl.contract import ENVIRONMENTS
from dlctl.contract.ground.safe_text import lines_of

_KIB = 1024
_HASH = re.compile(r"\w+/[0-9a-f]+")
SHARED = ("runtime", "store", ENVIRONMENTS)
"""The folders whose contents trainings share, each named by the hash of what it holds."""
REFERENCES = r"""
plans() { # of trainings, also of attempts that are being sent
    for plan in jobs/*/plan.json jobs/*/attempts/*/plan.json jobs/*/attempts/*/.sent.*/plan.json \
        jobs/*/search/trial-plan.json jobs/.dlctl-prune.*/plan.json; do
        [ ! -f "$plan" ] || printf '%s\n' "$plan"
    done
}
references() { # what plans name; fails if any can't be read
    plans | xargs sed -n -e 's|.*"runtime_dir": "[^"]*/runtime/\([^/"]*\)".*|uses runtime/\1|p' \
        -e 's|.*"code_digest": "\([^"]*\)".*|uses store/\1|p' \
        -e 's|.*"python": "[^"]*/environments/\([^/"]*\)/.*|uses environments/\1|p' /dev/null
}"""
"""Shell functions, for the root folder."""


@dataclass(frozen=True)
class Usage:
    """The use of room below a site's root."""

    total_bytes: int = 0
    folders: dict[str, int] = field(default_factory=dict)
    """Folder of the root → bytes."""
    trainings: dict[str, dict[str, int]] = field(default_factory=dict)
    """Training → part → bytes; `jobs` is the whole directory."""
    shared: dict[str, int] = field(default_factory=dict)
    """`runtime/<hash>` and the like → bytes."""
    resting: set[str] = field(default_factory=set)
    """Those of `shared` that no submission has asked for in the last day."""
    used: set[str] = field(default_factory=set)
    """Those of `shared` that a training names."""
    is_complete: bool = False
    """Whether every plan could be read: only then is anything surely unused."""
    disk_bytes: int | None = None
    free_bytes: int | None = None
    inodes: int | None = None
    free_inodes: int | None = None
    quota: list[str] = field(default_factory=list)
    """The lines of `quota -w`."""

    def of(self, training_id: str, part: str = "jobs") -> int:
        """Return the bytes of a part of a training."""
        return self.trainings.get(training_id, {}).get(part, 0)

    def all_of(self, part: str) -> int:
        """Return the bytes of a part of all trainings."""
        return sum(parts.get(part, 0) for parts in self.trainings.values())

    def by_kind(self) -> dict[str, int]:
        """Return what takes room, by what it is."""
        large, shared = {name: self.all_of(name) for name in PARTS}, self.folders.get
        sizes = {
            "checkpoints": large["checkpoints"] + large["rehearsal"], "results": large["results"],
            "data of trainings": large["data"], "code of trainings": large["code"],
            "logs and metrics": max(0, self.all_of("jobs") - sum(large.values())),
            "runtimes": shared("runtime"), "sent folders": shared("store"),
            "the nodes' Python": shared("env"), "environments": shared("environments"),
            "cached data": shared("cache"), "stored models": shared("models"),
            "unfinished": shared("unfinished"),
        }  # fmt: skip
        return {name: size for name, size in sizes.items() if size}

    def unused(self) -> dict[str, int]:
        """Return what trainings share and none names, and no submission has asked for today."""
        if not self.is_complete:
            return {}
        return {
            name: size for name, size in self.shared.items()
            if name in self.resting and name not in self.used and _HASH.fullmatch(name)
        }  # fmt: skip


@dataclass(frozen=True)
class TrainingRoom:
    """The room that a training takes."""

    training_id: str
    state: str | None
    """None of a damaged one."""
    size_bytes: int
    checkpoints_bytes: int
    results_bytes: int


@dataclass(frozen=True)
class Room:
    """The use of room at a site, and the rest; None: the site does not tell."""

    site: str
    root: str
    total_bytes: int
    parts: dict[str, int]
    trainings: list[TrainingRoom]
    unused: dict[str, int]
    """Folders that trainings share and none uses."""
    disk_bytes: int | None
    free_bytes: int | None
    inodes: int | None
    free_inodes: int | None
    quota: list[str]


PARTS = ("checkpoints", "results", "code", "data", "rehearsal")


def parse_usage(text: str) -> Usage:
    """Return what the lines of `login/inventory.sh.j2` say."""
    rows = [line.split() for line in lines_of(text) if line.strip()]
    trainings: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    folders: dict[str, int] = defaultdict(int)
    shared: dict[str, int] = {}
    total_bytes = 0
    for words in rows:
        if len(words) != 3 or not words[2].isdecimal() or words[0] in ("disk", "inodes", "quota"):
            continue
        kind, of, size_bytes = words[0], words[1], int(words[2]) * _KIB
        if kind == "total":
            total_bytes = size_bytes
        elif kind in SHARED and of != "-":
            shared[f"{kind}/{of}"] = size_bytes
        elif of == "-":
            folders[kind] += size_bytes
        else:
            trainings[of][kind] += size_bytes
    disk_kib, free_kib = _pair(rows, "disk")
    inodes, free_inodes = _pair(rows, "inodes")
    return Usage(
        total_bytes=total_bytes, folders=dict(folders),
        trainings={name: dict(parts) for name, parts in trainings.items()}, shared=shared,
        resting=set(_second(rows, "rests")), used=set(_second(rows, "uses")),
        is_complete=["complete"] in rows,
        disk_bytes=None if disk_kib is None else disk_kib * _KIB,
        free_bytes=None if free_kib is None else free_kib * _KIB,
        inodes=inodes or None, free_inodes=free_inodes if inodes else None,
        quota=[line.partition(" ")[2].strip() for line in lines_of(text)
               if line.startswith("quota ")],
    )  # fmt: skip


def _pair(rows: Iterable[list[str]], name: str) -> tuple[int | None, int | None]:
    """Return the numbers of the line with this name: some systems print `-` for them."""
    for words in rows:
        if words[0] == name and len(words) == 3 and all(map(str.isdecimal, words[1:])):
            return int(words[1]), int(words[2])
    return None, None


def _second(rows: Iterable[list[str]], name: str) -> list[str]:
    return [words[1] for words in rows if words[0] == name and len(words) > 1]
