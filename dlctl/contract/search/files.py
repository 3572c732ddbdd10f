"""The files of a search in the job directory of its hub, and what some of them hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlctl.contract.records import SCHEMA_VERSION

FRAMEWORK = "search"
"""The framework of the training that is a search's hub."""
EXIT_WRONG = 64
"""Exit code of a model, and so of its hub, whose next start would end alike."""
FOLDER = "search"
SPEC = f"{FOLDER}/spec.json"
TRIALS = f"{FOLDER}/trials.jsonl"
"""The model's log, a JSON object a line: `begin`, `ask`, `tell`, `report`, `give_up`. Only lines of
the model that wrote the latest `begin` count. If a sync fails, the model removes the line that it
has just written: a reader that resumes checks that the line before is unchanged."""
ENDPOINTS = f"{FOLDER}/endpoints"
"""`nameserver.json` and a file for each broker: where it listens."""
BROKERS = f"{FOLDER}/brokers"
"""A folder for each broker: `<n>.<segment>.log`, tasks and results of an incarnation; `<n>.lease`,
who may acknowledge; `<n>.sealed`, how much of the log a later incarnation took over."""
BROKER_STATUS = "status.json"
"""In a broker's folder: a `BrokerTold`, written every second."""
LOGS = f"{FOLDER}/logs"
"""What nameserver, brokers and model print."""
FIRST_BROKER = "b0"
"""The hub's. The model sends its tasks there."""
KEYS = f"{FOLDER}/tls"
"""The certificates, and keys of mode 0600, of this search alone."""
WORKERS = f"{FOLDER}/workers"
"""A folder for each pool, with its scripts, and each group: `count`, `before` (workers of earlier
groups), `submit.begin`, `submit.end`, and `<number>.out`, what a worker prints."""
POOLS = f"{WORKERS}/pools.json"
ALIVE = f"{WORKERS}/alive.sh"
"""Prints `<group> <job id> <state>` for each worker in the queue, waiting or running."""
OUTBOXES = f"{FOLDER}/outboxes"
"""Results that workers have not brought to their brokers yet, a file for each worker."""
TASKS = f"{FOLDER}/tasks"
"""Below a task's id: `log`, what its program prints; `run-<n>/`, what a run keeps, which begins
with a copy of the run before; `checkpoint`, a link to the newest of these."""
ENDED = f"{FOLDER}/ended"
"""It exists once the search is done: workers leave."""
STATUS = f"{FOLDER}/status.json"
"""How many trials were asked for, have ended and have failed, the best one, and the workers."""
TRIAL_PLAN = f"{FOLDER}/trial-plan.json"
"""The plan of a training that is a trial, before the point's values are put into it."""

BEGIN = "begin"
"""The event with which a model begins: from there on only its own lines count."""


class Newest:
    """Follows the lines of the log, and says which of them are the newest model's.

    A model that hung, or was cut off, may still write when another one goes on for it. That one has
    read the log up to its own first line, so what others write behind it counts for nobody.
    """

    def __init__(self) -> None:
        self._model = ""

    def counts(self, event: Mapping[str, Any]) -> bool:
        """Return whether the next line is one of the newest model's events."""
        if event["event"] == BEGIN:
            self._model = event["model"]
            return False
        return bool(event.get("model", "") == self._model)


@dataclass(frozen=True)
class Pool:
    """Workers whose jobs ask for the same resources."""

    name: str
    """A letter. Its groups are this letter and a number from 1, in the order of submission."""
    least: int
    """How many workers are submitted as soon as the pool is made or changed."""
    most: int
    """The hub adds no worker beyond these."""
    partition: str | None = None
    """None: that of search.yml, or the site's."""

    @property
    def submit_file(self) -> str:
        """Return the script that submits a group: `sh FILE GROUP COUNT`."""
        return f"{WORKERS}/{self.name}/submit.sh"


@dataclass(frozen=True)
class Pools:
    """All pools of a search. Written as search/workers/pools.json."""

    pools: list[Pool]
    schema_version: int = SCHEMA_VERSION

    @property
    def most(self) -> int:
        """Return how many workers there may be, all together."""
        return sum(pool.most for pool in self.pools)


@dataclass(frozen=True)
class WorkerStatus:
    """A worker, as its broker last heard of it."""

    name: str
    running: int = 0
    """Tasks that it holds."""
    seen_s_ago: float = 0.0
    waits: bool = False
    """It asks for tasks, and gets none."""
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
class BrokerStatus:
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
    workers: list[WorkerStatus] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION
