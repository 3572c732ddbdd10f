"""A worker: has slots, a home broker, and links to brokers that still wait for its results."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from search.errors import SearchError
from search.journal.epochs import boot_clock
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import read_endpoints, read_nameserver
from search.protocol.process import is_ending
from search.protocol.stubs import NameserverStub
from search.worker.links import Link
from search.worker.outbox import Outbox
from search.worker.slot_pool import Resources, SlotPool
from search.worker.slots import EchoSlot, Gpus, Slot

_LOOK_S = 0.2
_LOOK_FOR_END_S = 1.0
_FAILING_S = 1.0
"""A home that has not answered for this long is left, if there is another broker."""
_LAST_RESULTS_S = 10.0


@dataclass(frozen=True)
class Options:
    """The settings of a worker."""

    name: str
    slots: int
    have: Resources
    ends_at: float = 0.0
    """Unix seconds; 0: no end is known."""
    idle_s: float = 0.0
    """The worker leaves after this long without a task; 0: never."""
    grace_s: float = 10.0
    """Tasks have this long to save when the worker leaves."""
    echo: bool = False


class Worker:
    """One worker, until it leaves."""

    def __init__(self, job_dir: Path, options: Options) -> None:
        self._job_dir, self._options = job_dir, options
        self._ends = boot_clock() + options.ends_at - time.time() if options.ends_at else 0.0
        """By a clock that nobody sets."""
        self._outbox = Outbox(job_dir, options.name)
        self._links: dict[str, Link] = {}
        self._home = self._refused = ""
        self._looked_at = 0.0
        gpus = Gpus(options.have.gpus)
        make = EchoSlot if options.echo else Slot
        memory_bytes = options.have.memory_bytes // options.slots
        self._pool = SlotPool(
            options.name,
            lambda report: make(job_dir, memory_bytes, gpus, report),
            options.slots,
            options.have,
            gpus,
            self._outbox,
            self._changed,
        )
        self._pool.seconds_left = self._seconds_left
        self.leaving = asyncio.Event()
        """Set when the worker is to leave."""

    async def run(self) -> None:
        """Work until it is time to leave; then hand tasks back and bring the last results."""
        busy_at = time.monotonic()
        try:
            for broker in self._outbox.waiting:
                self._link(broker)
            while not self.leaving.is_set():
                await self._find_home()
                await self._prune()
                if self._pool.jobs:
                    busy_at = time.monotonic()
                for link in self._links.values():
                    link.check()
                self._refused = next((e.refused for e in self._links.values() if e.refused), "")
                if self._pool.trouble or self._refused or self._is_time_to_leave(busy_at):
                    self.leaving.set()
                try:
                    await asyncio.wait_for(self.leaving.wait(), _LOOK_S)
                except asyncio.TimeoutError:
                    continue
            for link in self._links.values():
                link.leave()
            await self._pool.drain(self._options.grace_s)
            await self._bring_last_results()
        finally:
            await self._pool.close()
            await asyncio.gather(*(link.close() for link in self._links.values()))
            self._outbox.close()
        if self._refused:
            raise SearchError(self._refused)
        if self._pool.trouble:
            raise SearchError(
                self._pool.trouble,
                hint="look at the node, and at the space of the job directory's file system",
            )

    def _is_time_to_leave(self, busy_at: float) -> bool:
        idle_s = self._options.idle_s
        if idle_s and time.monotonic() - busy_at > idle_s:
            return True
        if self._ends and boot_clock() > self._ends - self._options.grace_s - _LAST_RESULTS_S:
            return True
        return self._is_ending()

    def _is_ending(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_FOR_END_S:
            return False
        self._looked_at = now
        return is_ending(self._job_dir)

    def _seconds_left(self) -> float:
        if not self._ends:
            return 0.0
        left = self._ends - self._options.grace_s - _LAST_RESULTS_S - boot_clock()
        return max(left, 0.001)

    def _changed(self, broker: str) -> None:
        for name in {broker, self._home}:
            if name in self._links:
                self._links[name].changed()

    def _link(self, broker: str) -> Link:
        if broker not in self._links:
            self._links[broker] = Link(
                self._job_dir,
                broker,
                self._options.name,
                self._pool,
                self._outbox,
                lambda name: name == self._home,
            )
        return self._links[broker]

    async def _find_home(self) -> None:
        """Choose a broker to take tasks from, if there is none or it does not answer."""
        home = self._links.get(self._home)
        if home is not None:
            since = home.failing_since
            if since is None or time.monotonic() - since < _FAILING_S:
                return
        found = await self._look_for_broker(without=self._home)
        if found and found != self._home:
            self._home = found
            print(f"takes tasks from the broker {found}", flush=True)
            self._link(found).changed()

    async def _look_for_broker(self, without: str) -> str:
        """Return a random broker: by the nameserver, or else by the endpoints' files."""
        nameserver = read_nameserver(self._job_dir)
        if nameserver is not None:
            credentials = Credentials.load(self._job_dir, "worker")
            async with open_channel(nameserver.address, credentials) as channel:
                try:
                    ask = m.LookupRequest(except_broker=without)
                    reply = await NameserverStub(channel).Lookup(ask, timeout=1.0)
                    if reply.broker:
                        return str(reply.broker)
                except grpc.aio.AioRpcError:
                    pass
        known = [each.name for each in read_endpoints(self._job_dir) if each.name != without]
        return random.choice(known) if known else ""  # noqa: S311

    async def _prune(self) -> None:
        """Close links to former homes that have everything."""
        for name, link in list(self._links.items()):
            busy = self._outbox.waiting.get(name) or any(
                job.broker == name for job in self._pool.jobs.values()
            )
            if name != self._home and not busy:
                del self._links[name]
                await link.close()

    async def _bring_last_results(self) -> None:
        end = time.monotonic() + _LAST_RESULTS_S
        while self._outbox and time.monotonic() < end:
            await asyncio.sleep(0.02)
