"""A request: with the runtime that travels with it, git's word on the folder, and the overrides.

The overrides are those of the command line, for this and for later attempts.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import GitState, SentFile
from dlctl.files.archive import Entry
from dlctl.frameworks.files import modules
from dlctl.manifest.overrides import Overrides
from dlctl.request.bundle import Bundle
from dlctl.sites.model import Partition

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.sites.model import Site


@dataclass(frozen=True)
class Request:
    """Everything that a submission sends."""

    plan: contract.Plan
    manifest: str
    """manifest.yml as it runs."""
    script: str
    code: Bundle
    runtime: list[Entry]
    secrets: dict[str, str]
    """Variable → value; sent as files of mode 0600, stored nowhere else."""
    manifest_path: Path
    overrides: Overrides
    scripts: dict[str, str] = field(default_factory=dict)
    """The data stores' scripts, by their paths in the job directory."""
    private: dict[str, str] = field(default_factory=dict)
    """Further files of the job directory, by their paths, that are of mode 0600."""


def this_machine(site: Site) -> Partition | None:
    """Return this machine's limits, if dlctl's own queue runs the site's jobs on it."""
    if site.transport.kind != "local" or site.scheduler.kind != "local":
        return None
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    sizes = [os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
             if hasattr(os, "sysconf")]  # fmt: skip
    return Partition(
        cpus_per_node=len(affinity(0)) if affinity else os.cpu_count(),
        memory_per_node=math.prod(sizes) if sizes else None,
        gpus_per_node=len(list(Path("/dev").glob("nvidia[0-9]*"))),
    )


_RESUME = "resume"
"""The key in `Record.overrides` for what the newest resumption asked for, and its attempt."""


def submitted_with(record: Record) -> Overrides:
    """Return the overrides of the submission's command line."""
    values = json.loads(record.overrides)
    values.pop(_RESUME, None)
    return Overrides(**(values | {"set": tuple(values.get("set", ()))}))


def pending(record: Record, base_attempt: int) -> Overrides:
    """Return an interrupted resumption's overrides, unless an attempt has applied them."""
    values = json.loads(record.overrides).get(_RESUME) or {}
    return Overrides(**values["asked"]) if values.get("attempt", 0) > base_attempt else Overrides()


def is_code_pending(record: Record, base_attempt: int) -> bool:
    """Return whether an interrupted resumption was to send new code that no attempt has."""
    values = json.loads(record.overrides).get(_RESUME) or {}
    return bool(values.get("attempt", 0) > base_attempt and values.get("code"))


def remember(record: Record, overrides: Overrides, *, new_code: bool = False) -> Record:
    """Return the record with the overrides of its attempt, if there are any."""
    changes = {k: v for k, v in dataclasses.asdict(overrides).items() if v not in (None, ())}
    if not changes and not new_code:
        return record
    code = {"code": True} if new_code else {}
    resumption = {"attempt": record.attempt, "asked": changes} | code
    kept = json.loads(record.overrides) | {_RESUME: resumption}
    return replace(record, overrides=json.dumps(kept))


def merged(first: Overrides, second: Overrides) -> Overrides:
    """Return both merged; the second's values win."""
    changes = {k: v for k, v in dataclasses.asdict(second).items() if v not in (None, ())}
    return replace(first, **changes)


# What travels with it ----------------------------------------------------------------------------

_ENDINGS = ("py", "c", "binpb", "proto")
_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def runtime_entries() -> tuple[str, list[Entry]]:
    """Return the runtime's digest and its files, in order of their names, and their index."""
    files = {"dlctl/__init__.py": _PACKAGE / "__init__.py", **modules()}
    for package in ("dlctl/contract", "learner", "psrv", "search"):
        folder = _PACKAGE.parent / package
        for path in [found for ending in _ENDINGS for found in folder.rglob(f"*.{ending}")]:
            files[f"{package}/{path.relative_to(folder).as_posix()}"] = path
    contents = {name: path.read_bytes() for name, path in sorted(files.items())}
    index = contract.index_text(
        SentFile(hashlib.sha256(content).hexdigest(), len(content), "f", name)
        for name, content in contents.items()
    )
    entries = [Entry(name, content) for name, content in contents.items()]
    return contract.index_digest(index), [*entries, Entry(contract.SENT_INDEX, index)]


_PATIENCE_S = 5.0
"""In a huge repository git may take longer; a submission does not wait for that."""


def git_state(folder: Path) -> GitState | None:
    """Return the state of a folder; None without git, outside a repository, or before a commit."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    command = ["git", "--no-optional-locks", "-C", str(folder), "status", "--porcelain=v2",
               "--branch", "--", "."]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_status(done.stdout.decode(errors="replace"))


def parse_status(text: str) -> GitState | None:
    """Return what `git status --porcelain=v2 --branch` has printed."""
    lines = text.splitlines()
    fields = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = fields.get("branch.oid", ""), fields.get("branch.head", "")
    if not commit or commit == "(initial)":
        return None
    dirty = any(not line.startswith("# ") for line in lines)
    return GitState(commit, "" if branch == "(detached)" else branch, dirty)
