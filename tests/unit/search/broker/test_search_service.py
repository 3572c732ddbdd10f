"""A broker's answers, with a real log and a real lease, called without a network."""

import asyncio
from pathlib import Path
from typing import Any, cast

from event_loops import run_loop

from search.broker.queues import Queues
from search.broker.service import BrokerService
from search.journal.epochs import log_path
from search.journal.lease import Lease
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
