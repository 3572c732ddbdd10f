"""The tasks that a worker runs, their GPUs, its connection to a broker, and its end."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from event_loops import in_loop
from search_keys import write_keys

from dlctl.contract import search as files
from search.errors import SearchError
from search.protocol import messages as m
from search.worker.links import Link
from search.worker.outbox import Outbox
from search.worker.slot_pool import Resources, SlotPool
from search.worker.slots import EchoSlot, Gpus
from search.worker.worker import Options, Worker


class FaultySlot(EchoSlot):
    async def run(self, lease: Any, gpus: Any) -> Any:
        if lease.task.payload == b"bad":
            raise KeyError("a fault of ours")
        return await super().run(lease, gpus)


class FaultyPool(SlotPool):
    def held(self, broker: str) -> Any:
        raise KeyError("a fault of ours")


def make_pool(folder: Path, kind: Any = SlotPool, slot: Any = EchoSlot) -> tuple[Any, Outbox, Any]:
    """Return a pool with one slot, the outbox of its worker, and what is set at each change."""
    outbox, gpus, changed = Outbox(folder, "w1"), Gpus(0, {}), asyncio.Event()
    make_slot, have = partial(slot, folder, 0, gpus), Resources(1, 0, 0, ())
    return kind("w1", make_slot, 1, have, gpus, outbox, lambda _: changed.set()), outbox, changed


@in_loop
async def test_a_fault_of_the_workers_own_fails_one_task_and_stops_no_slot(tmp_path):
    pool, outbox, changed = make_pool(tmp_path, slot=FaultySlot)
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


@in_loop
async def test_what_a_worker_asks_for_beside_what_runs_is_taken_ahead(tmp_path):
    """A broker counts a death of the worker against what had begun there, and not against these."""
    pool, _, ended = make_pool(tmp_path)
    first, second = (m.Lease(task=m.Task(id=f"{n:032x}"), id=n, duration_s=9) for n in (1, 2))
    pool.take("b0", [first])
    await asyncio.wait_for(ended.wait(), 60)
    asked = pool.request(most := pool.wanted())  # a short task: many more are wanted
    assert (asked.want, asked.ahead, most > 5) == (1, most - 1, True)
    pool.take("b0", [second])
    asked = pool.request(5)
    assert (asked.want, asked.ahead) == (0, 5)
    await pool.close()


@in_loop
async def test_a_fault_of_the_workers_own_ends_it_instead_of_the_calls_to_a_broker_alone(tmp_path):
    """The call that had failed was never made again: the worker stayed, and did nothing."""
    write_keys(tmp_path)
    pool, outbox, _ = make_pool(tmp_path, FaultyPool)
    link = Link(tmp_path, "b0", "w1", pool, outbox, lambda _: True)
    with pytest.raises(KeyError, match="a fault of ours"):
        for _ in range(100_000):
            link.check()
            await asyncio.sleep(0)
    await link.close()
    await pool.close()


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
@in_loop
async def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch, jump_s):
    (tmp_path / files.FOLDER).mkdir()
    real = time.time
    have = Resources(cpus=1, gpus=0, memory_bytes=1 << 30, labels=())
    worker = Worker(tmp_path, Options("w1", 1, have, ends_at=time.time() + 5000, grace_s=10))
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    assert 4000 < worker._pool.request(1).seconds_left <= 4980
    worker.leaving.set()
    await worker.run()


def test_tasks_get_the_gpus_that_the_scheduler_gave_the_job():
    gpus = Gpus(3, {"CUDA_VISIBLE_DEVICES": "GPU-3f,1,7"})
    first = gpus.choose(2, [], ())
    assert first == ("GPU-3f", "1")
    assert gpus.choose(1, [first], ()) == ("7",)
    assert gpus.choose(1, [], ("7",)) == ("7",)  # the slot's process stays warm
    assert gpus.environment(first) == {"CUDA_VISIBLE_DEVICES": "GPU-3f,1"}
    assert gpus.environment(()) == {"CUDA_VISIBLE_DEVICES": ""}
    assert Gpus(2, {}).choose(2, [], ()) == ("0", "1"), "without a word of the scheduler"
    other = Gpus(1, {"ROCR_VISIBLE_DEVICES": "4"})
    assert other.environment(other.choose(1, [], ())) == {"ROCR_VISIBLE_DEVICES": "4"}
    assert Gpus(0, {"CUDA_VISIBLE_DEVICES": "1"}).environment(()) == {}
    with pytest.raises(SearchError, match="to have 2 GPUs, but CUDA_VISIBLE_DEVICES names 1"):
        Gpus(2, {"CUDA_VISIBLE_DEVICES": "0"})
