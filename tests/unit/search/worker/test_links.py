"""A worker's connection to one broker."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from event_loops import run_loop
from search_keys import write_keys

from search.worker.links import Link
from search.worker.outbox import Outbox
from search.worker.slot_pool import Resources, SlotPool
from search.worker.slots import EchoSlot, Gpus


class Faulty(SlotPool):
    def held(self, broker):
        raise KeyError("a fault of ours")


def test_a_fault_of_the_workers_own_ends_it_instead_of_the_calls_to_a_broker_alone(tmp_path):
    """The call that had failed was never made again: the worker stayed, and did nothing."""
    write_keys(tmp_path)

    async def play():
        outbox = Outbox(tmp_path, "w1")
        gpus = Gpus(0, {})
        pool = Faulty(
            "w1",
            partial(EchoSlot, tmp_path, 0, gpus),
            1,
            Resources(1, 0, 0, ()),
            gpus,
            outbox,
            lambda _: None,
        )
        link = Link(tmp_path, "b0", "w1", pool, outbox, lambda _: True)
        try:
            with pytest.raises(KeyError, match="a fault of ours"):
                while True:
                    link.check()
                    await asyncio.sleep(0)
        finally:
            await link.close()
            await pool.close()

    run_loop(asyncio.wait_for(play(), 60))
