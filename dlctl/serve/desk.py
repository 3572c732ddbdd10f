"""The state that all requests share: the user's record, open sites, and the limits on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio import CapacityLimiter

from dlctl.live.sites import Live
from dlctl.serve.follow import Followers
from dlctl.serve.problems import NotFound
from dlctl.service.client import Client, open_site

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

T = TypeVar("T")
_WANTED_S = 30.0
"""For how long after a request the states of trainings are kept new."""
_AT_SITES = 16
"""The number of requests that may wait for sites at once; the others wait for these."""


@dataclass
class Desk:
    """The server's side of all requests.

    Args:
        mine: The user's client, with a pool of connections.
        site: The site of requests that name none.
    """

    mine: Client
    site: str
    live: Live = field(init=False)
    followers: Followers = field(init=False)
    _limiter: CapacityLimiter | None = None
    _asked_at: dict[str, float] = field(default_factory=dict)
    """When somebody asked last about trainings of each site."""

    def __post_init__(self) -> None:
        self.live = Live(
            self.mine.store, open_site, self.mine.store.all,
            asks=lambda record: not record.state.final or record.notice_tries,
            is_wanted=lambda mine: any(self._is_wanted(record.site) for record in mine[:1]),
            hangs_up=True,
        )  # fmt: skip
        self.followers = Followers(self.mine.store, open_site)

    async def at_sites(self, work: Callable[[], T]) -> T:
        """Run in a thread what may wait for a site."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(_AT_SITES)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def keep_new(self, records: list[Record]) -> None:
        """Keep the states of trainings new for a while: somebody asks."""
        for site in {record.site for record in records if not record.state.final}:
            may_rest = not self._is_wanted(site, _WANTED_S / 2)  # or is about to
            self._asked_at[site] = time.monotonic()
            if may_rest:
                self.live.wake(site)

    def _is_wanted(self, site: str, for_s: float = _WANTED_S) -> bool:
        return time.monotonic() - self._asked_at.get(site, float("-inf")) < for_s

    async def records(self) -> list[Record]:
        """Return all trainings, the newest last; other requests are answered meanwhile."""
        return await anyio.to_thread.run_sync(self.mine.store.all)

    async def find(self, training_id: str) -> Record:
        """Return a training by its whole id; other requests are answered meanwhile.

        Raises:
            NotFound
        """
        return await anyio.to_thread.run_sync(self.find_now, training_id)

    def find_now(self, training_id: str, *, search: bool = False) -> Record:
        """Return a training by its whole id.

        Args:
            search: Whether it must be a search.

        Raises:
            NotFound
        """
        for record in self.mine.store.all():
            if record.training_id == training_id and (record.is_search or not search):
                return record
        raise NotFound(f"no {'search' if search else 'training'} {training_id!r} is known here")

    def open(self, site: str) -> closing[Session]:
        """Open a site for one request."""
        return closing(self.mine.open(site))

    def close(self) -> None:
        """End all threads and connections; idempotent."""
        self.followers.close()
        self.live.close()
        if self.mine.pool is not None:
            self.mine.pool.close()
