"""The answers of a login node about its scheduler, the same for all schedulers. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dlctl.contract.ground.safe_text import lines_of

_UNUSABLE = ("down", "drain", "fail", "error", "unknown", "maint", "power_down", "inval")


@dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    text: str = ""
    exit_code: int = -1
    errors: str = ""

    @property
    def output(self) -> str:
        """Return the text; empty if the command failed."""
        return "" if self.exit_code else self.text.strip()

    @property
    def pairs(self) -> dict[str, str]:
        """Return the lines `name=value`."""
        lines = (line.partition("=") for line in lines_of(self.output))
        return {name.strip(): value.strip() for name, sign, value in lines if sign}

    @property
    def rows(self) -> list[list[str]]:
        """Return the cells of the lines that have several, between `|`."""
        return [line.split("|") for line in lines_of(self.output) if "|" in line]


class Answers(dict[str, Answer]):
    """Question → answer; a question that was not asked has an empty one."""

    def __missing__(self, name: str) -> Answer:
        """Return no answer."""
        return Answer()


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
    """One partition."""

    name: str
    default: bool
    available: str
    """`up`, or the scheduler's word for why it takes no jobs."""
    max_time_s: int | None
    max_nodes: int | None
    groups: list[NodeGroup]

    def count(self, *, usable: bool) -> int:
        """Return how many nodes are usable now, or are not."""
        return sum(group.count for group in self.groups if group.usable is usable)


@dataclass(frozen=True)
class Offer:
    """The offer of a scheduler to this user."""

    title: str = ""
    """Its name and version, and the folder of its commands."""
    path: str | None = None
    """That folder, if it is not on the PATH of a non-login shell."""
    cluster: str = ""
    partitions: list[FoundPartition] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    default_account: str | None = None
    accounting: bool = False
    """Whether it tells of jobs that are over."""
    launcher: str = "mpirun"
    mpi: str | None = None
    """What that launcher should speak, of `mpi_types`."""
    mpi_types: list[str] = field(default_factory=list)
    mpi_default: str = "none"
    submit_hosts: dict[str, str] = field(default_factory=dict)
    """Partition → the nodes from which its jobs may be submitted, if these are not all."""
    problems: list[str] = field(default_factory=list)
    """Questions that got no answer, one sentence each."""


def leading_number(text: str) -> int | None:
    """Return the number with which a text begins."""
    match = re.match(r"\d+", text.strip())
    return int(match.group()) if match else None
