"""Answers the calls to a broker. No answer leaves before what it says is on the disk."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import grpc
import grpc.aio
from grpc.aio import ServicerContext as Context

from search.broker.queues import PEER, Queues
from search.broker.shapes import Room
from search.errors import SearchError
from search.journal.epochs import Lease
from search.journal.log import Log
from search.protocol import messages as m

MOST_TASKS = 200_000
"""How many tasks and results of models a broker keeps; then models wait."""
MOST_KEPT_BYTES = 1 << 30
"""How long their payloads and values may be, all together; then models wait."""
MOST_PAYLOAD_BYTES = 16 << 20
MOST_REPLY_BYTES = 32 << 20
MOST_BACKLOG_BYTES = 256 << 20
MOST_WAIT_S = 60.0
LOST_GRACE_S = 0.5
"""After its connection broke a worker or broker has this long to be back."""
FORGET_S = 90.0
"""A worker without tasks that was not heard of for so long is forgotten. Waiting for a task, it
calls at least every 60 s."""
_TICK_S = 0.1
_REPORT_WAIT_S = 0.2
_TASK_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[\w.@-]{1,200}")


class Wakeups:
    """Wakes all who wait at each notification, as an `asyncio.Condition` without its lock."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all who wait."""
        for future in self._waiting:
            _wake(future)
        self._waiting.clear()

    async def wait_until(self, ready: Callable[[], bool], wait_s: float) -> bool:
        """Wait until something is the case, looking at each notification; return whether it is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while not (found := ready()) and (left := end - loop.time()) > 0:
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            timer = loop.call_later(left, _wake, future)
            try:
                await future
            finally:
                timer.cancel()
                self._waiting.discard(future)
        return found


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class BrokerService:
    """A broker's answers."""

    def __init__(self, name: str, queues: Queues, log: Log, lease: Lease) -> None:
        self.name, self.queues = name, queues
        self._log, self._lease = log, lease
        self.work = Wakeups()
        """Notified when tasks wait."""
        self.results = Wakeups()
        """Notified when there are results or reports."""
        self.orders = Wakeups()
        """Notified when somebody may have to stop tasks."""
        self._heard_at: dict[str, float] = {}
        self._requests: dict[str, m.ExchangeRequest] = {}
        """Worker → its resources, as of its last call."""
        self._idle: dict[str, m.ExchangeRequest] = {}
        """The requests of workers that wait for tasks."""
        self._leaving = False

    # Models --------------------------------------------------------------------------------------

    async def Submit(self, request: m.SubmitRequest, context: Context) -> m.SubmitReply:
        """Add tasks."""
        await self._check_names(context, request.model)
        if self._leaving:
            await _unavailable(context, f"the broker {self.name} leaves")
        for task in request.tasks:
            if not _TASK_ID.fullmatch(task.id):
                await _refuse(context, f"{task.id!r} is no task's id: 32 hexadecimal digits")
            if len(task.payload) > MOST_PAYLOAD_BYTES:
                await _refuse(
                    context, f"the payload of {task.id} has more than {MOST_PAYLOAD_BYTES} bytes"
                )
        known, came = self.queues.submit(request.model, request.tasks, self._room())
        if came:
            self.work.notify()
        await self._durable(context)
        return m.SubmitReply(accepted=known, room=self._room())

    async def Cancel(self, request: m.CancelRequest, context: Context) -> m.CancelReply:
        """Withdraw tasks."""
        self.queues.cancel(request.model, request.task_ids, waiting_only=request.waiting_only)
        self.results.notify()
        self.orders.notify()
        await self._durable(context)
        return m.CancelReply()

    async def Results(self, request: m.ResultsRequest, context: Context) -> m.ResultsReply:
        """Give results, once there are any."""
        await self._check_names(context, request.model)
        self.queues.results.forget(request.model, request.cursor)
        box = self.queues.results.mailbox(request.model)
        wait_s = min(request.wait_s, MOST_WAIT_S)
        await self.results.wait_until(lambda: bool(box.accepted) or box.has_reports, wait_s)
        if not box.accepted and box.has_reports:  # reports come often: give them in larger groups
            await self.results.wait_until(lambda: bool(box.accepted), min(_REPORT_WAIT_S, wait_s))
        found = box.read(request.most or 1000, MOST_REPLY_BYTES)
        cursor = box.cursor + len(found)
        await self._durable(context)
        return m.ResultsReply(
            results=found,
            cursor=cursor,
            reports=box.take_reports(),
            incarnation=self.queues.incarnation,
        )

    # Workers -------------------------------------------------------------------------------------

    async def Exchange(self, request: m.ExchangeRequest, context: Context) -> m.ExchangeReply:
        """Take results; give tasks, once there are any."""
        await self._check_names(context, request.worker)
        self._heard_at[request.worker] = time.monotonic()
        self._requests[request.worker] = m.ExchangeRequest(
            has=request.has, seconds_left=request.seconds_left, types=request.types
        )
        gone_s = 0.0 if request.leaving else request.seconds_left or None
        self.queues.excuse(request.worker, None if gone_s is None else time.monotonic() + gone_s)
        taken: list[str] = []
        if request.results:
            taken = self._accept(request.worker, request.results)
            await self._durable(context)
        if waits := self._idle.get(request.worker):  # more is free than when it began to wait
            waits.free.CopyFrom(request.free)
        leases = self._give(request)
        if not leases and (request.want or request.ahead) and request.wait_s:
            leases = await self._wait_for_tasks(request)
        return m.ExchangeReply(taken=taken, leases=leases)

    async def Renew(self, request: m.RenewRequest, context: Context) -> m.RenewReply:
        """Go on with leases; give orders, once there are any."""
        await self._check_names(context, request.worker)
        self._heard_at[request.worker] = time.monotonic()
        return m.RenewReply(
            answers=await self._renew(request.worker, request.running, request.wait_s, context)
        )

    # Brokers -------------------------------------------------------------------------------------

    async def Lend(self, request: m.LendRequest, context: Context) -> m.LendReply:
        """Give another broker tasks that this one owns."""
        await self._check_names(context, request.broker)
        if self._leaving:
            return m.LendReply()
        room = Room.of(request.free, request, for_each=True)
        now = time.monotonic()
        leases = self.queues.lease(PEER + request.broker, request.want, room, now, lend=True)
        await self._durable(context)
        return m.LendReply(leases=leases)

    async def Return(self, request: m.ReturnRequest, context: Context) -> m.ReturnReply:
        """Take results, or tasks that were handed back, from a broker that helps."""
        await self._check_names(context, request.broker)
        holder = PEER + request.broker
        taken = self._accept(holder, request.results)
        await self._durable(context)
        answers = await self._renew(holder, request.running, request.wait_s, context)
        return m.ReturnReply(taken=taken, answers=answers)

    async def Status(self, request: m.StatusRequest, context: Context) -> m.StatusReply:  # noqa: ARG002
        """Say what is in the queues."""
        return self.status(time.monotonic())

    # Always --------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """End leases that lapsed, for ever."""
        forgot_at = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            if time.monotonic() - forgot_at > FORGET_S:
                forgot_at = time.monotonic()
                self._forget_workers(forgot_at - FORGET_S)
            accepted = self.queues.counts["accepted"]
            if self.queues.lapse(time.monotonic()):
                self.work.notify()
            if self.queues.counts["accepted"] > accepted:
                self.results.notify()
            if self.queues.helping_count and not self._has_workers(time.monotonic()):
                self.queues.hand_back_helped()
                self.results.notify()

    def _has_workers(self, now: float) -> bool:
        """Return whether anybody is left who could run what other brokers lent."""
        lease_s = self.queues.lease_s
        return bool(self._idle) or any(now - at < lease_s for at in self._heard_at.values())

    def _forget_workers(self, before: float) -> None:
        """Forget workers that are gone: in a long search many come and go."""
        for name, heard_at in list(self._heard_at.items()):
            if heard_at < before and name not in self.queues.held and name not in self._idle:
                del self._heard_at[name]
                self._requests.pop(name, None)
                self.queues.excuse(name, None)

    def leave(self) -> None:
        """Give out no more tasks, and hand back those of other brokers that nobody runs."""
        self._leaving = True
        self.queues.hand_back_helped()
        self.results.notify()

    def status(self, now: float) -> m.StatusReply:
        """Return what is in the queues."""
        status = self.queues.status()
        status.broker, status.incarnation = self.name, self.queues.incarnation
        for worker in status.workers:
            worker.seen_s_ago = now - self._heard_at.get(worker.name, now)
        return status

    @property
    def workers(self) -> dict[str, tuple[float, m.ExchangeRequest]]:
        """Return when each worker was heard of, and what it has and how long it stays."""
        return {
            name: (heard_at, self._requests.get(name, m.ExchangeRequest()))
            for name, heard_at in self._heard_at.items()
        }

    # Inside --------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Return how many tasks a model may send: none while memory or disk can't keep up."""
        queues = self.queues
        kept_bytes = queues.tasks.payload_bytes + queues.results.value_bytes
        if kept_bytes > MOST_KEPT_BYTES or self._log.backlog_bytes > MOST_BACKLOG_BYTES:
            return 0
        return max(0, MOST_TASKS - queues.outstanding)

    def _accept(self, holder: str, results: Sequence[m.Result]) -> list[str]:
        taken = self.queues.accept(holder, results, time.monotonic())
        self.results.notify()
        if any(result.outcome == m.HANDED_BACK for result in results):
            self.work.notify()  # not for each result: a thousand workers may wait
        return taken

    def _give(self, request: m.ExchangeRequest) -> list[m.Lease]:
        if self._leaving or not self._lease.held():  # another may give them out by now
            return []
        now = time.monotonic()
        want, ahead = request.want, request.ahead
        if ahead and not want and request.worker not in self.queues.held:
            want, ahead = 1, ahead - 1  # what it ran when it called has ended
        room = Room.of(request.free, request)
        leases = self.queues.lease(request.worker, want, room, now)
        if ahead and len(leases) == want:
            room = Room.of(request.has, request, for_each=True, ahead=True)
            leases += self.queues.lease(request.worker, ahead, room, now)
        return leases

    async def _wait_for_tasks(self, request: m.ExchangeRequest) -> list[m.Lease]:
        leases: list[m.Lease] = []

        def found() -> bool:
            leases.extend(self._give(request))
            return bool(leases)

        self._idle[request.worker] = request
        try:
            await self.work.wait_until(found, min(request.wait_s, MOST_WAIT_S))
        finally:
            if self._idle.get(request.worker) is request:
                del self._idle[request.worker]
        return leases

    def idle_workers(self) -> list[m.ExchangeRequest]:
        """Return what those workers asked for that wait in vain."""
        return list(self._idle.values())

    async def _renew(
        self, holder: str, running: Iterable[m.Report], wait_s: float, context: Context
    ) -> list[m.RenewReply.Answer]:
        """Go on with leases. A call that breaks while it waits tells that its caller is gone."""
        reports = list(running)
        now = time.monotonic()
        orders = self.queues.renew(holder, reports, now)
        if any(report.metrics for report in reports):
            self.results.notify()
        if wait_s and not orders:
            held = {report.task_id for report in reports}
            try:
                await self.orders.wait_until(
                    lambda: not held.isdisjoint(self.queues.withdrawn_of(holder)),
                    min(wait_s, MOST_WAIT_S),
                )
            except asyncio.CancelledError:
                self._heard_at.pop(holder, None)
                self.queues.lose(holder, time.monotonic(), LOST_GRACE_S)
                raise
            orders = {i: m.STOP for i in self.queues.withdrawn_of(holder) if i in held}
        await self._may_acknowledge(context)
        return [m.RenewReply.Answer(task_id=i, order=order) for i, order in orders.items()]

    async def _durable(self, context: Context) -> None:
        """Wait until everything recorded so far is on the disk, and may be acknowledged."""
        if self._log.backlog_bytes > MOST_BACKLOG_BYTES:
            await _unavailable(context, "the broker's disk takes nothing: its log waits")
        try:
            await self._log.flushed()
        except SearchError as error:
            await _unavailable(context, f"{error.message}. {error.hint}")
        await self._may_acknowledge(context)

    async def _may_acknowledge(self, context: Context) -> None:
        if not self._lease.held():
            await _unavailable(context, "this broker's lease has lapsed: another goes on for it")

    async def _check_names(self, context: Context, name: str) -> None:
        if not _NAME.fullmatch(name):
            await _refuse(context, f"{name!r} is no name: letters, digits, and any of . _ @ -")


async def _refuse(context: Context, why: str) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
    raise AssertionError("abort returned")


async def _unavailable(context: Context, why: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, why)
    raise AssertionError("abort returned")
