"""What commands about sites, their frameworks, stores and files print with `--json`.

As in `printed`, these are dictionaries and their keys where no record of dlctl says it.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from dlctl.cli.manners.printed import Training
from dlctl.contract.stores import CachedData
from dlctl.models.changes import Collected
from dlctl.upkeep.prune import Pruned


class StoredResults(TypedDict):
    """A training whose results went to data stores; a sentence for each store."""

    training_id: str
    stored: list[str]


class KnownSite(TypedDict):
    """A site."""

    name: str
    kind: str
    file: str


class RemovedSite(TypedDict):
    """A site file that was removed; a dry run removes nothing."""

    site: str
    file: str
    removed: bool


class AddedSite(TypedDict):
    """What was found at a site that was added."""

    site: str
    file: str
    login_node: str
    slurm: str
    partitions: str
    connection: str
    account: str
    launcher: str
    root: str
    python: str
    not_answered: str


KnownFramework = TypedDict(
    "KnownFramework",
    {"name": str, "title": str, "job": "str | None", "from": str, "folder": str},
)
"""A framework."""


class FrameworkDetails(TypedDict):
    """Where a framework comes from, and how its job is started."""

    name: str
    path: str
    template: str
    environments: list[dict[str, Any]]


class KnownStore(TypedDict):
    """A type of data store."""

    type: str
    scripts: list[str]
    description: str
    folder: str


class StoreDetails(TypedDict):
    """Where a type of data store comes from."""

    type: str
    folder: str


Setting = TypedDict("Setting", {"name": str, "value": str, "from": str, "meaning": str})
"""A setting of the user's."""


class KnownSchema(TypedDict):
    """A schema, and how each command prints what has it."""

    name: str
    what: str
    commands: dict[str, str]


class DamagedTraining(TypedDict):
    """A job directory that can't be understood."""

    training_id: str
    why: str


class AdoptedTrainings(TypedDict):
    """What the local record knows now of a site."""

    site: str
    added: list[Training]
    known: list[str]
    damaged: list[DamagedTraining]


class TrainingRoom(TypedDict):
    """What a training takes at its site; null: nobody knows its state."""

    training_id: str
    state: str | None
    size_bytes: int
    checkpoints_bytes: int
    results_bytes: int


class Room(TypedDict):
    """What takes room at a site; null: the site does not tell."""

    site: str
    root: str
    total_bytes: int
    parts: dict[str, int]
    trainings: list[TrainingRoom]
    unused: dict[str, int]
    disk_bytes: int | None
    free_bytes: int | None
    inodes: int | None
    free_inodes: int | None
    quota: list[str]


class PrunableTraining(TypedDict):
    """A training that may go."""

    training_id: str
    state: str
    ended_at: float
    size_bytes: int


class PrunedSite(TypedDict):
    """What may go at a site, and what was removed; null: nothing was, as in a dry run."""

    site: str
    keeps_results: bool
    trainings: list[PrunableTraining]
    forgotten: list[str]
    unused: dict[str, int]
    cached: list[CachedData]
    contents: Collected | None
    size_bytes: int
    removed: Pruned | None
