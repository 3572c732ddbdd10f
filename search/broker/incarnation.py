"""One incarnation of a broker, and the adoption of brokers that are gone.

An incarnation takes over the state of the former one, answers calls, and ends. Brokers that are
gone for good are adopted, so that their tasks run and their results are taken.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from dlctl.contract import search as files
from search.broker.peers import Peers
from search.broker.queues import Queues
from search.broker.replay import begin, replay, snapshot
from search.broker.service import BrokerService
from search.broker.status import tell
from search.errors import SearchError
from search.journal.epochs import (
    LEFT,
    RETIRED,
    Adopted,
    Lease,
    LeaseWatch,
    adopt,
    incarnations,
    log_path,
    remove_before,
)
from search.journal.log import Log
from search.protocol.channels import Credentials, open_server
from search.protocol.endpoints import (
    Endpoint,
    own_place,
    read_endpoints,
    remove_endpoint,
    write_endpoint,
)
from search.protocol.process import is_ending, run_until_one_ends
from search.protocol.stubs import make_handler

_LOOKS = 10
"""How often an adopter looks in the time for which silence is borne."""


class Adopter:
    """Runs the next incarnations of brokers that have ended, beside this process's own broker.

    The process that creates the next lease adopts the broker. A broker that is started again
    supersedes it.

    Args:
        spec: How long silence is borne, and where to listen.
    """

    def __init__(self, job_dir: Path, spec: files.Spec, own: str) -> None:
        self._job_dir, self._spec, self._own = job_dir, spec, own
        self._watches: dict[str, LeaseWatch] = {}
        self._running: dict[str, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Look for brokers that are gone, for ever."""
        try:
            while True:
                await asyncio.sleep(self._spec.heartbeat_timeout_s / _LOOKS)
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
                    self._spec.heartbeat_timeout_s,
                )
            except OSError as error:
                print(f"can't adopt the broker {name}: {error}", file=sys.stderr, flush=True)
                continue
            if lease is not None:
                print(f"adopts the broker {name}", flush=True)
                self._running[name] = asyncio.ensure_future(self._adopt(name, lease, watch))

    def _gone(self, running: frozenset[str]) -> list[tuple[LeaseWatch, str]]:
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
                watch = LeaseWatch(folder, newest, self._spec.heartbeat_timeout_s)
                self._watches[name] = watch
            if newest and watch.look() == LEFT:
                found.append((watch, name))
        return found

    async def _adopt(self, name: str, lease: Lease, watch: LeaseWatch) -> None:
        incarnation = Incarnation(self._job_dir, self._spec, name, lease, watch)
        try:
            await incarnation.run(adopted=True)
            print(f"nothing is left of the broker {name}", flush=True)
        except (SearchError, OSError) as error:
            print(error, file=sys.stderr, flush=True)


_ADOPTED_GRACE_S = 0.5
"""Workers have this long to say which tasks of a former incarnation they still run."""
_EMPTY_S = 1.0
"""An adopted broker that has been empty for so long is given up."""
_LEAVING_S = 8.0
"""How long a broker that ends waits for its workers, to bring other brokers their tasks back."""
_LOOK_S = 0.1
SEGMENT_BYTES = 64 << 20
"""A longer log goes on in a further file, which begins with a snapshot, unless that is as long."""
_AT_ONCE = 500
"""How many records are replayed while no caller gets an answer."""
Body = Callable[[], Coroutine[Any, Any, None]]


class Incarnation:
    """One incarnation, from its claim to its end.

    Args:
        spec: How long silence is borne, and where to listen.
        watch: Has watched the former incarnation for a while.
        segment_bytes: How long a file of the log may be, as far as its snapshot permits.
    """

    def __init__(
        self,
        job_dir: Path,
        spec: files.Spec,
        name: str,
        lease: Lease,
        watch: LeaseWatch | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._job_dir, self._spec, self.name = job_dir, spec, name
        self._folder = job_dir / files.BROKERS / name
        self._lease, self._watch = lease, watch
        self._segment_bytes = segment_bytes
        self._log: Log
        self._service: BrokerService
        self._peers: Peers
        self._endpoint: Endpoint | None = None
        self._ended = self._retired = False

    async def run(self, *bodies: Body, adopted: bool = False) -> None:
        """Answer until cancelled, or until another incarnation has begun.

        Args:
            adopted: The broker's own process is gone: end once nothing of the broker is left.
        """
        try:
            found = await asyncio.to_thread(
                adopt,
                self._folder,
                self._lease.incarnation,
                self._spec.heartbeat_timeout_s,
                self._watch,
            )
            self._log = Log(log_path(self._folder, self._lease.incarnation))
            try:
                queues = await self._take_over(found, self._log)
                self._service = BrokerService(self.name, queues, self._log, self._lease)
                await self._answer(bodies, adopted)
            finally:
                self._log.close()
                if self._leaves_nothing(queues):
                    self._log.path.unlink(missing_ok=True)
        finally:
            self._end()

    async def _take_over(self, found: Adopted, log: Log) -> Queues:
        number = self._lease.incarnation
        queues = Queues(number, self._spec.heartbeat_timeout_s, log.append)
        for at, record in enumerate(found.records):
            replay(queues, record.kind, record.payload)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for kind, payload in snapshot(queues):
            log.append(kind, payload)
        log.snapshot_bytes = log.segment_bytes
        await log.flushed()
        if not self._lease.held():
            raise SearchError(f"the broker {self.name} lost its lease while it started")
        remove_before(self._folder, number)
        begin(queues, time.monotonic(), _ADOPTED_GRACE_S)
        print(
            f"{self.name}: incarnation {number}, {len(queues.tasks)} tasks from incarnation "
            f"{found.incarnation}, {found.torn_bytes} bytes of a torn tail left out",
            flush=True,
        )
        return queues

    async def _answer(self, bodies: tuple[Body, ...], adopted: bool) -> None:
        service = self._service
        server, address = open_server(
            own_place(self._spec.network),
            Credentials.load(self._job_dir, "broker"),
            [make_handler("Broker", service)],
        )
        await server.start()
        self._endpoint = Endpoint(self.name, self._lease.incarnation, address)
        write_endpoint(self._job_dir, self._endpoint)
        self._peers = Peers(self._job_dir, self._endpoint, service, self._spec.heartbeat_s)
        own: tuple[Body, ...] = (self._peers.heartbeats, self._peers.borrow, *bodies)
        if adopted:
            own = (self._until_empty,)
        try:
            self._peers.attend_all()
            await run_until_one_ends(
                service.tick(),
                self._watch_lease(),
                self._compact(),
                tell(self._folder, service),
                *(body() for body in own),
            )
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            await self._peers.close()
            self._end()
            await server.stop(0.5)
            counts = service.queues.counts
            print(
                f"{self.name}: incarnation {self._lease.incarnation} ends; so far "
                f"{counts['accepted']} results accepted, {counts['failed']} of them failed, "
                f"{counts['dropped']} dropped, {counts['lent']} tasks lent"
                + ("; it leaves nothing behind" if self._leaves_nothing(service.queues) else ""),
                flush=True,
            )

    def _leaves_nothing(self, queues: Queues) -> bool:
        """Return whether nobody needs the log any more, no model its numbers either."""
        return self._retired and not queues.results.mailboxes

    async def _watch_lease(self) -> None:
        while not self._lease.superseded:
            await asyncio.sleep(_LOOK_S)
            self._log.look()
            if self._log.broken is not None:
                raise self._log.broken
        raise SearchError(f"another incarnation of the broker {self.name} has begun: this one ends")

    async def _compact(self) -> None:
        """Keep the log short, for ever: only the present state of tasks and results is needed."""
        segment, log = 0, self._log
        while True:
            await asyncio.sleep(_LOOK_S)
            if log.segment_bytes > max(self._segment_bytes, 2 * log.snapshot_bytes):
                segment += 1
                path = log_path(self._folder, self._lease.incarnation, segment)
                log.begin_segment(path, snapshot(self._service.queues))

    async def _until_empty(self) -> None:
        empty_since = time.monotonic()
        while time.monotonic() - empty_since < _EMPTY_S:
            await asyncio.sleep(_LOOK_S)
            if not self._service.queues.is_empty():
                empty_since = time.monotonic()

    async def _leave(self) -> None:
        """Give other brokers their tasks back, those that run once their workers hand them back."""
        queues = self._service.queues
        end = time.monotonic() + _LEAVING_S
        self._service.leave()
        await self._peers.settle()
        while True:
            queues.lapse(time.monotonic())
            self._service.leave()
            if not queues.has_of_others() or time.monotonic() > end:
                return
            await asyncio.sleep(_LOOK_S / 5)

    def _end(self) -> None:
        """Say how the incarnation ends. From here on it acknowledges nothing."""
        if self._ended:
            return
        self._ended = True
        if self._endpoint is not None and self._lease.held() and self._service.queues.is_empty():
            remove_endpoint(self._job_dir, self._endpoint)
            (self._folder / files.BROKER_STATUS).unlink(missing_ok=True)
            self._retired = True
        self._lease.close(RETIRED if self._retired else LEFT)
