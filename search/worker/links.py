"""A worker's connection to one broker: takes tasks, brings results, renews leases."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from search.errors import SearchError
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import Endpoint, read_endpoint
from search.protocol.stubs import BrokerStub
from search.worker.outbox import Outbox
from search.worker.slot_pool import SlotPool

_MOST_RESULTS = 256
_MOST_BYTES = 24 << 20
_POLL_S = 5.0
_RENEW_S = 2.0
_CALL_S = 10.0
_GATHER_S = 0.02
"""Results of short tasks travel together, as far as they come within this time."""
_RETRY_S = 0.2
_LOOK_S = 2.0
_FOR_EVER = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED)


class Link:
    """The connection to one broker, whatever its incarnation.

    Args:
        is_home: Says whether the worker takes tasks from this broker.
    """

    def __init__(
        self,
        job_dir: Path,
        broker: str,
        worker: str,
        pool: SlotPool,
        outbox: Outbox,
        is_home: Callable[[str], bool],
    ) -> None:
        self._job_dir, self.broker, self._worker = job_dir, broker, worker
        self._pool, self._outbox, self._is_home = pool, outbox, is_home
        self._credentials = Credentials.load(job_dir, "worker")
        self._endpoint: Endpoint | None = None
        self._cached: BrokerStub
        self._channel: grpc.aio.Channel | None = None
        self._looked_at = 0.0
        self._results, self._free = asyncio.Event(), asyncio.Event()
        self._in_flight = 0
        """How many tasks the calls that are under way ask for."""
        self.failing_since: float | None = None
        """When the first of the calls failed that failed since the last answer."""
        self.refused = ""
        """Why the broker will never answer this worker."""
        self._leaving = self._to_tell = self._has_told = False
        self._tasks = [
            asyncio.ensure_future(body)
            for body in (self._send(), self._poll(), self._renew(0.0), self._renew(_RENEW_S / 2))
        ]

    async def close(self) -> None:
        """End all calls."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    def check(self) -> None:
        """Raise what has ended one of the loops, which run for ever."""
        for task in self._tasks:
            if task.done():
                task.result()

    def leave(self) -> None:
        """Tell the broker that the worker leaves, at once and with each further call."""
        self._leaving = self._to_tell = True
        self.changed()

    def changed(self) -> None:
        """Note that there are new results, or free slots, or another home."""
        self._results.set()
        self._free.set()

    async def _send(self) -> None:
        """Bring results as soon as there are any, and take tasks in the same call."""
        while True:
            results = self._outbox.first(self.broker, _MOST_RESULTS, _MOST_BYTES)
            if not results and not self._to_tell:
                self._results.clear()
                await self._results.wait()
                continue
            self._to_tell = False
            if self._pool.has_waiting() and len(results) < _MOST_RESULTS:
                await asyncio.sleep(_GATHER_S)
                results = self._outbox.first(self.broker, _MOST_RESULTS, _MOST_BYTES)
            await self._exchange(results, 0.0)

    async def _poll(self) -> None:
        """Wait for tasks while slots are free and there are no results to bring."""
        while True:
            if self._outbox.waiting.get(self.broker) or self._want() <= 0:
                self._free.clear()
                await self._free.wait()
                continue
            await self._exchange([], _POLL_S)

    def _want(self) -> int:
        return self._pool.wanted() - self._in_flight if self._is_home(self.broker) else 0

    async def _exchange(self, results: list[m.Result], wait_s: float) -> None:
        want = max(0, self._want())
        request = self._pool.request(want)
        request.results.extend(results)
        request.wait_s, request.leaving = wait_s, self._leaving
        self._in_flight += want
        try:
            reply = await self._stub().Exchange(request, timeout=wait_s + _CALL_S)
        except (grpc.aio.AioRpcError, SearchError) as error:
            await self._failed(error)
            return
        finally:
            self._in_flight -= want
        self.failing_since = None
        if request.leaving and not self._has_told:
            self._has_told = True
            print(f"broker {self.broker}: knows that this worker leaves", flush=True)
        self._outbox.taken(self.broker, list(reply.taken))
        if reply.leases:
            self._pool.take(self.broker, list(reply.leases))
        self.changed()

    async def _renew(self, later_s: float) -> None:
        """Renew leases. The call waits at the broker: it ends when there is an order.

        While there is no task, too, a call waits: if it breaks, the broker knows at once that the
        worker has died, whatever it had leased to it meanwhile. Two calls overlap, for one of them
        to wait at any moment.
        """
        await asyncio.sleep(later_s)
        while True:
            running = self._pool.held(self.broker)
            if not running and not self._is_home(self.broker):
                await asyncio.sleep(0.05)
                continue
            request = m.RenewRequest(worker=self._worker, running=running, wait_s=_RENEW_S)
            try:
                reply = await self._stub().Renew(request, timeout=_RENEW_S + _CALL_S)
            except (grpc.aio.AioRpcError, SearchError) as error:
                await self._failed(error)
                await asyncio.sleep(later_s)
                continue
            self.failing_since = None
            for answer in reply.answers:
                self._pool.obey(answer.task_id, answer.order)
            if reply.answers:
                await asyncio.sleep(_RETRY_S)

    async def _failed(self, error: Exception) -> None:
        if self.failing_since is None:
            self.failing_since = time.monotonic()
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            print(f"broker {self.broker}: {why}", flush=True)
        self._looked_at = 0.0
        if isinstance(error, grpc.aio.AioRpcError) and error.code() in _FOR_EVER:
            self.refused = f"the broker {self.broker} refuses this worker: {error.details()}"
        await asyncio.sleep(_RETRY_S)

    def _stub(self) -> BrokerStub:
        """Return a stub for where the broker listens now.

        Raises:
            SearchError: It never listened.
        """
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return self._cached
        found = read_endpoint(self._job_dir, self.broker)
        if found is None and self._endpoint is not None:
            self._outbox.forget(self.broker)
            self._pool.forget(self.broker)
            raise SearchError("it is gone, and nothing is left of it")
        if found is not None and found != self._endpoint:
            if self._channel is not None:
                with contextlib.suppress(RuntimeError):
                    asyncio.ensure_future(self._channel.close())
            self._endpoint = found
            self._channel = open_channel(found.address, self._credentials)
            self._cached = BrokerStub(self._channel)
        if self._channel is None:
            raise SearchError("it has no endpoint yet")
        self._looked_at = now
        return self._cached
