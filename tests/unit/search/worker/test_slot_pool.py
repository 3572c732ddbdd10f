"""The tasks that a worker runs."""

from __future__ import annotations

import asyncio
from functools import partial

from event_loops import run_loop

from search.protocol import messages as m
from search.worker.outbox import Outbox
from search.worker.slot_pool import Resources, SlotPool
from search.worker.slots import EchoSlot, Gpus


class Faulty(EchoSlot):
    async def run(self, lease, gpus):
        if lease.task.payload == b"bad":
            raise KeyError("a fault of ours")
        return await super().run(lease, gpus)


def test_a_fault_of_the_workers_own_fails_one_task_and_stops_no_slot(tmp_path):
    async def play():
        outbox = Outbox(tmp_path, "w1")
        gpus = Gpus(0, {})
        changed = asyncio.Event()
        pool = SlotPool(
            "w1",
            partial(Faulty, tmp_path, 0, gpus),
            1,
            Resources(1, 0, 0, ()),
            gpus,
            outbox,
            lambda _: changed.set(),
        )
        for number, payload in enumerate((b"bad", b"good"), 1):
            task = m.Task(id=f"{number:032x}", payload=payload)
            pool.take("b0", [m.Lease(task=task, id=number, duration_s=10)])
        while len(outbox.waiting.get("b0", {})) < 2:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 60)
        first, second = outbox.waiting["b0"].values()
        assert (first.outcome, "KeyError" in first.error) == (m.FAILED, True)
        assert second.outcome == m.SUCCEEDED
        await pool.close()

    run_loop(play())


def test_what_a_worker_asks_for_beside_what_runs_is_taken_ahead(tmp_path):
    """A broker counts a death of the worker against what had begun there, and not against these."""

    async def play():
        outbox, ended = Outbox(tmp_path, "w1"), asyncio.Event()
        gpus = Gpus(0, {})
        pool = SlotPool(
            "w1",
            partial(EchoSlot, tmp_path, 0, gpus),
            1,
            Resources(1, 0, 0, ()),
            gpus,
            outbox,
            lambda _: ended.set(),
        )
        first, second = (m.Lease(task=m.Task(id=f"{n:032x}"), id=n, duration_s=9) for n in (1, 2))
        pool.take("b0", [first])
        await asyncio.wait_for(ended.wait(), 60)
        asked = pool.request(most := pool.wanted())  # a short task: many more are wanted
        assert (asked.want, asked.ahead, most > 5) == (1, most - 1, True)
        pool.take("b0", [second])
        asked = pool.request(5)
        assert (asked.want, asked.ahead) == (0, 5)
        await pool.close()

    run_loop(play())
