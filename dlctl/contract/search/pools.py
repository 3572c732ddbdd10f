"""The number of workers that a search may have; it may change while the search runs."""

from __future__ import annotations

from dataclasses import dataclass

from dlctl.contract.records import SCHEMA_VERSION
from dlctl.contract.search.names import WORKERS


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
