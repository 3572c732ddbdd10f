"""A request, and the overrides of the command line for this and for later attempts."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.files.archive import Entry
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
    asked = {k: v for k, v in dataclasses.asdict(overrides).items() if v not in (None, ())}
    if not asked and not new_code:
        return record
    resumption = {"attempt": record.attempt, "asked": asked} | ({"code": True} if new_code else {})
    kept = json.loads(record.overrides) | {_RESUME: resumption}
    return replace(record, overrides=json.dumps(kept))


def merged(first: Overrides, second: Overrides) -> Overrides:
    """Return both merged; the second's values win."""
    said = {k: v for k, v in dataclasses.asdict(second).items() if v not in (None, ())}
    return replace(first, **said)
