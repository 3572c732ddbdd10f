"""Adopts brokers that are gone for good, so that their tasks run and their results are taken."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dlctl.contract import search as files
from search.broker.incarnation import Incarnation
from search.errors import SearchError
from search.journal.lease import LEFT, Lease, Watch, incarnations
from search.protocol.endpoints import read_endpoints
from search.protocol.settings import Settings, is_ending

_LOOKS = 10
"""How often an adopter looks in the time for which silence is borne."""


class Adopter:
    """Runs the next incarnations of brokers that have ended, beside this process's own broker.

    The process that creates the next lease adopts the broker. A broker that is started again
    supersedes it.

    Args:
        job_dir: The search's.
        settings: How long silence is borne, and where to listen.
        own: The broker that is this process's own.
    """

    def __init__(self, job_dir: Path, settings: Settings, own: str) -> None:
        self._job_dir, self._settings, self._own = job_dir, settings, own
        self._watches: dict[str, Watch] = {}
        self._running: dict[str, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Look for brokers that are gone, for ever."""
        try:
            while True:
                await asyncio.sleep(self._settings.heartbeat_timeout_s / _LOOKS)
                await self._look()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self) -> None:
        self._running = {name: t for name, t in self._running.items() if not t.done()}
        for watch, name in await asyncio.to_thread(self._gone, frozenset(self._running)):
            try:
                lease = await asyncio.to_thread(
                    Lease.claim_after,
                    self._job_dir / files.BROKERS / name,
                    watch.incarnation,
                    self._settings.heartbeat_timeout_s,
                )
            except OSError as error:
                print(f"can't adopt the broker {name}: {error}", file=sys.stderr, flush=True)
                continue
            if lease is not None:
                print(f"adopts the broker {name}", flush=True)
                self._running[name] = asyncio.ensure_future(self._adopt(name, lease, watch))

    def _gone(self, running: frozenset[str]) -> list[tuple[Watch, str]]:
        """Return the brokers that listened and whose leases have lapsed."""
        if is_ending(self._job_dir):
            return []
        listened = {each.name for each in read_endpoints(self._job_dir)}
        found = []
        for name in listened - running - {self._own}:
            folder = self._job_dir / files.BROKERS / name
            newest = max(incarnations(folder), default=0)
            watch = self._watches.get(name)
            if watch is None or watch.incarnation != newest:
                watch = Watch(folder, newest, self._settings.heartbeat_timeout_s)
                self._watches[name] = watch
            if newest and watch.look() == LEFT:
                found.append((watch, name))
        return found

    async def _adopt(self, name: str, lease: Lease, watch: Watch) -> None:
        incarnation = Incarnation(self._job_dir, self._settings, name, lease, watch)
        try:
            await incarnation.run(adopted=True)
            print(f"nothing is left of the broker {name}", flush=True)
        except (SearchError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
