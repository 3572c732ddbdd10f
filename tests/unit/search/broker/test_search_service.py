"""A broker's answers, with a real log and a real lease, called without a network."""

import asyncio
import time
from pathlib import Path
from typing import Any, cast

from event_loops import run_loop

from search.broker.queues import Queues
from search.broker.service import BrokerService
from search.journal.epochs import Lease, log_path
from search.journal.log import Log
from search.protocol import messages as m

NO_CONTEXT = cast(Any, None)
FREE = m.Needs(cpus=1)


class Counting(Queues):
    """Counts how often somebody asks for tasks."""

    asked = 0

    def lease(self, *arguments: Any, **more: Any) -> list[m.Lease]:
        self.asked += 1
        return super().lease(*arguments, **more)


def take(worker: str, wait_s: float = 0.0, *results: m.Result) -> m.ExchangeRequest:
    return m.ExchangeRequest(worker=worker, want=1, free=FREE, wait_s=wait_s, results=results)


def test_only_a_task_that_comes_back_wakes_workers_that_wait(tmp_path: Path) -> None:
    """With a thousand workers, waking all of them for each result left the broker a tenth."""

    async def run() -> None:
        lease = Lease.claim(tmp_path, 10.0)
        log = Log(log_path(tmp_path, 1))
        queues = Counting(1, 10.0, log.append)
        service = BrokerService("b", queues, log, lease)
        try:
            for number in range(2):
                task = m.Task(id=f"{number:032x}", type="python")
                await service.Submit(m.SubmitRequest(model="m", tasks=[task]), NO_CONTEXT)
            leases = [(await service.Exchange(take("w1"), NO_CONTEXT)).leases[0] for _ in range(2)]
            waits = asyncio.ensure_future(service.Exchange(take("w2", 30.0), NO_CONTEXT))
            await asyncio.sleep(0)
            before = queues.asked
            ended, back = (
                m.Result(task_id=each.task.id, lease_id=each.id, outcome=outcome)
                for each, outcome in zip(leases, (m.SUCCEEDED, m.HANDED_BACK), strict=True)
            )
            bring = m.ExchangeRequest(worker="w1", results=[ended])
            await service.Exchange(bring, NO_CONTEXT)
            assert queues.asked == before + 1  # by w1's own call
            await service.Exchange(m.ExchangeRequest(worker="w1", results=[back]), NO_CONTEXT)
            assert [each.task.id for each in (await waits).leases] == [back.task_id]
        finally:
            log.close()
            lease.close()

    run_loop(run())


def test_a_broker_whose_lease_has_lapsed_gives_out_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        lease = Lease.claim(tmp_path, 10.0)
        log = Log(log_path(tmp_path, 1))
        service = BrokerService("b", Queues(1, 10.0, log.append), log, lease)
        try:
            task = m.Task(id=f"{1:032x}", type="python")
            await service.Submit(m.SubmitRequest(model="m", tasks=[task]), NO_CONTEXT)
            lease.close()
            assert not (await service.Exchange(take("w1"), NO_CONTEXT)).leases
        finally:
            log.close()
            lease.close()

    run_loop(run())


def test_a_worker_that_has_ended_what_it_ran_begins_one_of_the_tasks_that_it_waits_for(
    tmp_path: Path,
) -> None:
    """All of them were taken for tasks that wait there, and had no deaths."""

    async def run() -> None:
        lease, log = Lease.claim(tmp_path, 10.0), Log(log_path(tmp_path, 1))
        queues = Queues(1, 10.0, log.append)
        service = BrokerService("b", queues, log, lease)

        async def submit(*numbers: int) -> None:
            tasks = [m.Task(id=f"{number:032x}", type="python") for number in numbers]
            await service.Submit(m.SubmitRequest(model="m", tasks=tasks), NO_CONTEXT)

        try:
            await submit(0)
            (ran,) = (await service.Exchange(take("w1"), NO_CONTEXT)).leases
            ask = m.ExchangeRequest(worker="w1", ahead=5, has=FREE, free=m.Needs(), wait_s=30.0)
            waits = asyncio.ensure_future(service.Exchange(ask, NO_CONTEXT))
            await asyncio.sleep(0)
            ended = m.Result(task_id=ran.task.id, lease_id=ran.id, outcome=m.SUCCEEDED)
            bring = m.ExchangeRequest(worker="w1", results=[ended], free=FREE)
            await service.Exchange(bring, NO_CONTEXT)
            await submit(1, 2)
            leases = (await waits).leases
            assert [queues.tasks[each.task.id].begun for each in leases] == [True, False]
        finally:
            log.close()
            lease.close()

    run_loop(run())


def test_a_large_task_goes_to_a_worker_whose_small_ones_ended_meanwhile(tmp_path: Path) -> None:
    """The call that waits was made when less was free. The worker need not ask again."""

    async def run() -> None:
        lease, log = Lease.claim(tmp_path, 10.0), Log(log_path(tmp_path, 1))
        service = BrokerService("b", Queues(1, 10.0, log.append), log, lease)

        async def submit(number: int, cpus: int) -> None:
            task = m.Task(id=f"{number:032x}", type="python", needs=m.Needs(cpus=cpus))
            await service.Submit(m.SubmitRequest(model="m", tasks=[task]), NO_CONTEXT)

        try:
            await submit(0, 1)
            ask = m.ExchangeRequest(worker="w1", want=1, free=m.Needs(cpus=2))
            (small,) = (await service.Exchange(ask, NO_CONTEXT)).leases
            ask = m.ExchangeRequest(worker="w1", want=1, free=m.Needs(cpus=1), wait_s=60.0)
            waits = asyncio.ensure_future(service.Exchange(ask, NO_CONTEXT))
            await asyncio.sleep(0)
            ended = m.Result(task_id=small.task.id, lease_id=small.id, outcome=m.SUCCEEDED)
            bring = m.ExchangeRequest(worker="w1", results=[ended], free=m.Needs(cpus=2))
            await service.Exchange(bring, NO_CONTEXT)
            await submit(1, 2)
            assert [each.task.id for each in (await waits).leases] == [f"{1:032x}"]
        finally:
            log.close()
            lease.close()

    run_loop(run())


def test_the_end_of_a_worker_that_said_that_it_leaves_is_no_death_of_its_task(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        lease, log = Lease.claim(tmp_path, 10.0), Log(log_path(tmp_path, 1))
        queues = Queues(1, 10.0, log.append)
        service = BrokerService("b", queues, log, lease)
        try:
            task = m.Task(id=f"{1:032x}", type="python")
            await service.Submit(m.SubmitRequest(model="m", tasks=[task]), NO_CONTEXT)
            for worker, leaving, deaths in (("w1", True, 0), ("w2", False, 1)):
                await service.Exchange(take(worker), NO_CONTEXT)
                bye = m.ExchangeRequest(worker=worker, leaving=leaving)
                await service.Exchange(bye, NO_CONTEXT)
                assert queues.lapse(time.monotonic() + 11) == 1
                assert queues.tasks[task.id].task.deaths == deaths
        finally:
            log.close()
            lease.close()

    run_loop(run())
