"""Figures of a whole site, for its operators: idle nodes, hours lost, hours spent exchanging.

The paper on IBM's Deep Learning Service calls them additional indicators, relevant to the platform
itself (section "Understanding Training Progress").
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from dlctl.contract.measured.utilisation import CPU_PERCENT, GPU_PERCENT, gpu_name
from dlctl.contract.metrics import Source
from dlctl.lifecycle import learner_statuses, read_plan
from dlctl.lifecycle.accounts import accounts
from dlctl.outputs.ledger import Ledger, ledger
from dlctl.outputs.metrics.reader import MetricsReader
from dlctl.series.run import Run

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_IDLE_PERCENT = 5.0
"""Less use of every GPU, or without any of a core, makes a node idle."""
_NEWEST = 6
"""Samples of 10 s: the last minute."""
_GPUS = 16


@dataclass(frozen=True)
class IdleNode:
    """A node that a running training holds and does not use."""

    host: str
    training_id: str
    busy_percent: float
    """The mean of its GPUs, or of a core if it has none."""


@dataclass(frozen=True)
class Platform:
    """The figures of one site, over the trainings of the local record."""

    site: str
    trainings: int
    running: int
    nodes_held: int
    """By the trainings that run."""
    idle: list[IdleNode] = field(default_factory=list)
    node_hours: float = 0.0
    lost_node_hours: float = 0.0
    """Done again after faults."""
    exchange_node_hours: float = 0.0
    """Spent exchanging between learners."""
    idle_node_hours: float = 0.0


def platform(session: Session, site: str, records: Sequence[Record]) -> Platform:
    """Return the figures of a site.

    Args:
        records: all trainings of the site that are recorded here.

    Raises:
        TransportError
    """
    now = time.time()
    books = [ledger(i, some, None, now) for i, some in accounts(session, records).items()]
    running = [r for r in records if r.state.runs]
    held, idle = 0, list[IdleNode]()
    for record in running:
        plan = read_plan(session, record)
        held += plan.resources.nodes
        reader = MetricsReader(record)
        reader.refresh(session.transport)
        hosts = {s.rank: s.host for s in learner_statuses(session, record, plan)}
        idle += idle_nodes(record.training_id, reader.run, hosts)
    return Platform(
        site, len(records), len(running), held, idle, sum(b.node_hours for b in books),
        _hours(books, "again"), _hours(books, "exchange"), _hours(books, "idle"),
    )  # fmt: skip


def _hours(books: Sequence[Ledger], use: str) -> float:
    return sum(book.node_hours_by_use[use] for book in books)


def idle_nodes(training_id: str, run: Run, hosts: dict[int, str]) -> list[IdleNode]:
    """Return the nodes on which no learner has been busy in the last minute.

    Args:
        hosts: where each learner runs, by rank.
    """
    busy: dict[str, list[float]] = {}
    for rank, host in hosts.items():
        if (found := _busy(run, rank)) is not None:
            busy.setdefault(host, []).append(found)
    return [
        IdleNode(host, training_id, max(values)) for host, values in sorted(busy.items())
        if max(values) < _IDLE_PERCENT
    ]  # fmt: skip


def _busy(run: Run, rank: int) -> float | None:
    names = [gpu_name(index, GPU_PERCENT) for index in range(_GPUS)]
    known = {
        key.name: [v for v in curve.points.last[-_NEWEST:] if not math.isnan(v)]
        for key, curve in run.curves.items()
        if key.source == Source.NODE.value and key.learner == rank
    }
    gpus = [fmean(values) for name in names if (values := known.get(name))]
    if gpus:
        return max(gpus)
    return fmean(cpu) if (cpu := known.get(CPU_PERCENT)) else None
