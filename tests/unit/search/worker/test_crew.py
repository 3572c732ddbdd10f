"""The tasks that a worker runs."""

from __future__ import annotations

import asyncio

from event_loops import run_loop

from search.protocol import messages as m
from search.worker.crew import Crew, Resources
from search.worker.echo import EchoSlot
from search.worker.gpus import Gpus
from search.worker.outbox import Outbox


class Faulty(EchoSlot):
    async def run(self, lease, gpus):
        if lease.task.payload == b"bad":
            raise KeyError("a fault of ours")
        return await super().run(lease, gpus)


def test_a_fault_of_the_workers_own_fails_one_task_and_stops_no_slot(tmp_path):
    async def play():
        outbox = Outbox(tmp_path, "w1")
        changed = asyncio.Event()
        crew = Crew("w1", lambda _: Faulty(), 1, Resources(1, 0, 0, ()), Gpus(0, {}), outbox,
                    lambda _: changed.set())  # fmt: skip
        for number, payload in enumerate((b"bad", b"good"), 1):
            task = m.Task(id=f"{number:032x}", payload=payload)
            crew.take("b0", [m.Lease(task=task, id=number, duration_s=10)])
        while len(outbox.waiting.get("b0", {})) < 2:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 60)
        first, second = outbox.waiting["b0"].values()
        assert (first.outcome, "KeyError" in first.error) == (m.FAILED, True)
        assert second.outcome == m.SUCCEEDED
        await crew.close()

    run_loop(play())
