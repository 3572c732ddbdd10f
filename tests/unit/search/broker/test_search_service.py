"""A broker's answers, and what it tells in its file."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

from broker_in_process import broker_in, submit
from event_loops import in_loop

from dlctl import contract
from search.broker import service as service_module
from search.broker.queues import Queues
from search.broker.status import tell
from search.protocol import messages as m

FREE = m.Needs(cpus=1)


class Counting(Queues):
    """Counts how often somebody asks for tasks."""

    asked = 0

    def lease(self, *arguments: Any, **more: Any) -> list[m.Lease]:
        self.asked += 1
        return super().lease(*arguments, **more)


async def exchange(broker: Any, worker: str = "w1", **fields: Any) -> list[m.Lease]:
    """Ask for a task, unless the fields say otherwise."""
    asked = {"want": 1, "free": FREE} | fields
    request = m.ExchangeRequest(worker=worker, **asked)
    return list((await broker.Exchange(request, None)).leases)


async def waits(broker: Any, worker: str = "w1", **fields: Any) -> asyncio.Future[list[m.Lease]]:
    """Begin a call that waits for tasks."""
    call = asyncio.ensure_future(exchange(broker, worker, wait_s=30.0, **fields))
    await asyncio.sleep(0)
    return call


def end(lease: m.Lease, outcome: m.Outcome = m.SUCCEEDED) -> list[m.Result]:
    return [m.Result(task_id=lease.task.id, lease_id=lease.id, outcome=outcome)]


@in_loop
async def test_only_a_task_that_comes_back_wakes_workers_that_wait(tmp_path):
    """With a thousand workers, waking all of them for each result left the broker a tenth."""
    with broker_in(tmp_path, queues=Counting) as broker:
        await submit(broker, 0, 1)
        (ended,), (back,) = [await exchange(broker) for _ in range(2)]
        call = await waits(broker, "w2")
        before = broker.queues.asked
        await exchange(broker, want=0, results=end(ended))
        assert broker.queues.asked == before + 1  # by w1's own call
        await exchange(broker, want=0, results=end(back, m.HANDED_BACK))
        assert [each.task.id for each in await call] == [back.task.id]


@in_loop
async def test_a_broker_whose_lease_has_lapsed_gives_out_nothing(tmp_path):
    with broker_in(tmp_path) as broker:
        await submit(broker, 1)
        broker._lease.close()
        assert not await exchange(broker)


@in_loop
async def test_a_worker_that_has_ended_what_it_ran_begins_one_of_the_tasks_that_it_waits_for(
    tmp_path,
):
    """All of them were taken for tasks that wait there, and had no deaths."""
    with broker_in(tmp_path) as broker:
        await submit(broker, 0)
        (ran,) = await exchange(broker)
        call = await waits(broker, want=0, ahead=5, has=FREE, free=m.Needs())
        await exchange(broker, want=0, results=end(ran))
        await submit(broker, 1, 2)
        assert [broker.queues.tasks[each.task.id].begun for each in await call] == [True, False]


@in_loop
async def test_a_large_task_goes_to_a_worker_whose_small_ones_ended_meanwhile(tmp_path):
    """The call that waits was made when less was free. The worker need not ask again."""
    with broker_in(tmp_path) as broker:
        await submit(broker, 0)
        (small,) = await exchange(broker, free=m.Needs(cpus=2))
        call = await waits(broker)
        await exchange(broker, want=0, results=end(small), free=m.Needs(cpus=2))
        await submit(broker, 1, needs=m.Needs(cpus=2))
        assert [each.task.id for each in await call] == [f"{1:032x}"]


@in_loop
async def test_the_end_of_a_worker_that_said_that_it_leaves_is_no_death_of_its_task(tmp_path):
    with broker_in(tmp_path) as broker:
        await submit(broker, 1)
        for worker, leaving, deaths in (("w1", True, 0), ("w2", False, 1)):
            await exchange(broker, worker)
            await exchange(broker, worker, want=0, free=None, leaving=leaving)
            assert broker.queues.lapse(time.monotonic() + 61) == 1
            assert broker.queues.tasks[f"{1:032x}"].task.deaths == deaths


@in_loop
async def test_a_model_is_told_how_much_room_there_is_by_number_bytes_and_what_the_disk_lacks(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(service_module, "MOST_TASKS", 5)
    monkeypatch.setattr(service_module, "MOST_KEPT_BYTES", 1000)
    with broker_in(tmp_path) as broker:
        queues = broker.queues
        reply = await submit(broker, 0, 1, 2, payload=b"x")
        assert (len(reply.accepted), reply.room) == (3, 2)
        assert (await submit(broker, 3, payload=b"x" * 2000)).room == 0
        assert not (await submit(broker, 4, payload=b"x")).accepted
        queues.cancel("m", [f"{3:032x}"])
        queues.results.forget("m", 1)
        reply = await submit(broker, 5, 6, 7, payload=b"x")
        assert (len(reply.accepted), reply.room) == (2, 0)
        queues.cancel("m", [f"{0:032x}"])
        queues.results.forget("m", 2)
        await broker._log.flushed()
        monkeypatch.setattr(service_module, "MOST_BACKLOG_BYTES", -1)
        assert broker._room() == 0


@in_loop
async def test_a_broker_that_ends_writes_nothing_afterwards(tmp_path, monkeypatch):
    """A write that was under way made the file again that a broker which retires had removed."""
    began, may_end = threading.Event(), threading.Event()
    written: list[bool] = []
    whole = contract.write_whole

    def slow(path: Path, text: str, **more: Any) -> None:
        if not began.is_set():
            began.set()
            may_end.wait(60)
        whole(path, text, **more)
        written.append(task.done())

    with broker_in(tmp_path) as broker:
        monkeypatch.setattr("dlctl.contract.write_whole", slow)
        task = asyncio.ensure_future(tell(tmp_path, broker))
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait([task], timeout=60)
        while len(written) < 2:
            await asyncio.sleep(0)
        assert written == [False, False]
