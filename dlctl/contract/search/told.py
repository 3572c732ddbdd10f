"""The status file of a broker, so that no one has to connect to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dlctl.contract.records import SCHEMA_VERSION


@dataclass(frozen=True)
class WorkerTold:
    """A worker, as its broker last heard of it."""

    name: str
    running: int = 0
    """Tasks that it holds."""
    seen_s_ago: float = 0.0
    waits: bool = False
    """Whether it asks for tasks, and gets none."""
    cpus: int = 0
    """This and the next three are all that it has, also what tasks use."""
    gpus: int = 0
    memory_bytes: int = 0
    labels: list[str] = field(default_factory=list)
    seconds_left: float = 0.0
    """How much longer it was there when it asked last; 0: no end is known."""
    types: list[str] = field(default_factory=list)
    """The types of tasks that it runs; empty: `python` and `exec`."""


@dataclass(frozen=True)
class BrokerTold:
    """The queues of a broker, and its workers. Written as `search/brokers/<name>/status.json`."""

    broker: str
    incarnation: int
    time: float
    """Unix seconds."""
    owned: int = 0
    """Tasks that models sent here and that wait."""
    helper: int = 0
    """Tasks of other brokers that wait here."""
    processing: int = 0
    """Tasks that workers, or other brokers, have."""
    results: int = 0
    """Results that nobody has taken yet."""
    accepted: int = 0
    """This and the next three count since the broker's first incarnation began."""
    failed: int = 0
    dropped: int = 0
    """Results that came too late, or twice."""
    lent: int = 0
    workers: list[WorkerTold] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION
