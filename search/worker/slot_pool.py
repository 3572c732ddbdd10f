"""The slots of a worker, the tasks that wait for one, and what is free."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from search.protocol import messages as m
from search.worker.outbox import Outbox
from search.worker.slots import Gpus, OnReport, Slot

_AHEAD_S = 0.05
"""How much work waits here, beside what runs, so that short tasks don't wait for the network."""
_MOST_AHEAD = 256
_ALMOST_ALL = 0.2
_TOGETHER_S = 0.5
"""A scheduler signals all processes of a job within this time."""


@dataclass
class Job:
    """A task that is here."""

    broker: str
    lease: m.Lease
    slot: Slot | None = None
    """None: it waits."""
    gpus: tuple[str, ...] = ()
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """The newest value of each name that it has reported."""

    def report(self) -> m.Report:
        """Return what it says of itself."""
        lease = self.lease
        return m.Report(
            task_id=lease.task.id, lease_id=lease.id, step=self.step, metrics=self.metrics
        )


@dataclass(frozen=True)
class Resources:
    """The resources of a worker, for all of its tasks together."""

    cpus: int
    gpus: int
    memory_bytes: int
    labels: tuple[str, ...]


class SlotPool:
    """Runs tasks in slots. A result is in the outbox before anybody hears of it.

    Args:
        make_slot: Makes one slot, given what takes its tasks' reports.
        have: What all tasks share.
        changed: Is called with a broker's name when it has a result, or there is room.
    """

    def __init__(
        self,
        worker: str,
        make_slot: Callable[[OnReport], Slot],
        slots: int,
        have: Resources,
        gpus: Gpus,
        outbox: Outbox,
        changed: Callable[[str], None],
    ) -> None:
        self._worker, self._have = worker, have
        self._outbox, self._changed = outbox, changed
        self._gpus = gpus
        self._slots = [make_slot(self._report) for _ in range(slots)]
        self.jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._came = asyncio.Event()
        self._mean_s: float | None = None
        self.draining = False
        self.seconds_left: Callable[[], float] = lambda: 0.0
        self._running = [asyncio.ensure_future(self._run(slot)) for slot in self._slots]

    @property
    def trouble(self) -> str:
        """Return why tasks can't run here; empty: they can."""
        return next((slot.trouble for slot in self._slots if slot.trouble), "")

    # What links ask -----------------------------------------------------------------------------

    def wanted(self) -> int:
        """Return how many more tasks the worker takes."""
        if self.draining:
            return 0
        ahead = 0
        if self._mean_s is not None:
            ahead = int(min(_MOST_AHEAD, len(self._slots) * _AHEAD_S / max(self._mean_s, 1e-6)))
        return len(self._slots) + ahead - len(self.jobs)

    def has_waiting(self) -> bool:
        """Return whether tasks wait here for a slot."""
        return bool(self._waiting)

    def request(self, want: int) -> m.ExchangeRequest:
        """Return a request that says what is free."""
        have = self._have
        free = self._free(self.jobs.values())
        now = min(want, max(0, len(self._slots) - len(self.jobs)))
        return m.ExchangeRequest(
            worker=self._worker,
            want=now,
            free=m.Needs(
                cpus=free.cpus, gpus=free.gpus, memory_bytes=free.memory_bytes, labels=have.labels
            ),
            ahead=want - now,
            has=m.Needs(
                cpus=have.cpus, gpus=have.gpus, memory_bytes=have.memory_bytes, labels=have.labels
            ),
            seconds_left=self.seconds_left(),
        )

    def _free(self, jobs: Iterable[Job]) -> Resources:
        cpus = gpus = memory_bytes = 0
        for job in jobs:
            needs = job.lease.task.needs
            cpus, gpus = cpus + needs.cpus, gpus + needs.gpus
            memory_bytes += needs.memory_bytes
        have = self._have
        return Resources(
            max(0, have.cpus - cpus),
            max(0, have.gpus - gpus),
            max(0, have.memory_bytes - memory_bytes),
            have.labels,
        )

    def take(self, broker: str, leases: list[m.Lease]) -> None:
        """Run tasks, as soon as slots are free."""
        for lease in leases:
            running = self.jobs.get(lease.task.id)
            if running is not None:  # its lease had lapsed, and came back to this worker
                running.broker, running.lease = broker, lease
                continue
            job = Job(broker, lease)
            self.jobs[lease.task.id] = job
            self._waiting.append(job)
        if self.draining:
            self._hand_back_waiting()
        self._came.set()

    def held(self, broker: str) -> list[m.Report]:
        """Return the tasks of a broker that are here, with what they reported."""
        return [job.report() for job in self.jobs.values() if job.broker == broker]

    def obey(self, task_id: str, order: m.Order, grace_s: float = 5.0) -> None:
        """Give an order to a task."""
        job = self.jobs.get(task_id)
        if job is None:
            return
        if job.slot is not None:
            job.slot.order(order, grace_s)
        elif order == m.STOP:
            self._finish(job, m.Result(task_id=task_id, lease_id=job.lease.id, outcome=m.CANCELLED))
        elif order == m.CHECKPOINT:
            self._hand_back(job)

    def forget(self, broker: str) -> None:
        """Stop the tasks of a broker that is gone for good."""
        for job in [job for job in self.jobs.values() if job.broker == broker]:
            self.obey(job.lease.task.id, m.STOP)

    # Ending -------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Hand everything back: running tasks may save first."""
        self.draining = True
        self._hand_back_waiting()
        for job in list(self.jobs.values()):
            self.obey(job.lease.task.id, m.CHECKPOINT, grace_s)
        while self.jobs:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End the slots."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(slot.close() for slot in self._slots))

    # Inside -------------------------------------------------------------------------------------

    async def _run(self, slot: Slot) -> None:
        while True:
            job = await self._next()
            taken = [other.gpus for other in self.jobs.values()]
            job.gpus = self._gpus.choose(job.lease.task.needs.gpus, taken, slot.gpus)
            job.slot = slot
            try:
                result = await slot.run(job.lease, job.gpus)
            except Exception as error:  # a fault of dlctl's own: the slot must not stop for it
                await slot.close()
                result = m.Result(
                    task_id=job.lease.task.id, outcome=m.FAILED,
                    error=f"the worker failed, and not the task: {error!r}",
                )  # fmt: skip
            if slot.trouble:
                self.draining = True  # or it would get the same task again and again
            result.lease_id = job.lease.id  # it may have been leased anew meanwhile, to this worker
            if slot.was_terminated and await self._is_leaving():
                result = m.Result(
                    task_id=result.task_id, lease_id=result.lease_id, outcome=m.HANDED_BACK
                )
            mean_s = result.seconds if self._mean_s is None else self._mean_s
            self._mean_s = mean_s + _ALMOST_ALL * (result.seconds - mean_s)
            self._finish(job, result)

    async def _is_leaving(self) -> bool:
        """Return whether the signal that ended a task has come to the worker, too."""
        for _ in range(10):
            if self.draining:
                return True
            await asyncio.sleep(_TOGETHER_S / 10)
        return self.draining

    async def _next(self) -> Job:
        while True:
            while self._waiting:
                job = self._waiting[0]
                is_here = self.jobs.get(job.lease.task.id) is job
                if is_here and not self._fits(job):
                    break  # until another one ends
                self._waiting.popleft()
                if is_here:
                    return job
            self._came.clear()
            await self._came.wait()

    def _fits(self, job: Job) -> bool:
        needs = job.lease.task.needs
        if not (needs.cpus or needs.gpus or needs.memory_bytes):
            return True
        free = self._free(other for other in self.jobs.values() if other.slot is not None)
        return (
            needs.cpus <= free.cpus
            and needs.gpus <= free.gpus
            and needs.memory_bytes <= free.memory_bytes
        )

    def _finish(self, job: Job, result: m.Result) -> None:
        result.worker = self._worker
        if job.metrics:
            result.report.CopyFrom(job.report())
        self._outbox.put(job.broker, result)
        self.jobs.pop(job.lease.task.id, None)
        self._came.set()
        self._changed(job.broker)

    def _hand_back(self, job: Job) -> None:
        task = job.lease.task
        result = m.Result(task_id=task.id, lease_id=job.lease.id, outcome=m.HANDED_BACK)
        self._finish(job, result)

    def _hand_back_waiting(self) -> None:
        for job in [job for job in self.jobs.values() if job.slot is None]:
            self._hand_back(job)

    def _report(self, task_id: str, step: int, metrics: dict[str, float]) -> None:
        with contextlib.suppress(KeyError):
            job = self.jobs[task_id]
            job.step = step
            job.metrics.update(metrics)
