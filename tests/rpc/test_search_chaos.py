"""Brokers and workers are killed at random, for a quarter of a minute: a short one finds little."""

import asyncio
import itertools
import random

import pytest
from event_loops import in_loop
from search_processes import Search, python_task

from search.protocol import messages as m

BROKERS = ("b0", "b1", "b2")
ROUNDS = 8
EACH = 25


@pytest.mark.parametrize("seed", [1])
@in_loop
async def test_each_task_has_one_result_whatever_is_killed(search: Search, seed: int) -> None:
    chance = random.Random(seed)
    numbers = itertools.count()
    for broker in BROKERS:
        search.broker(broker, "--segment-bytes", "10000")
    workers = [f"w{next(numbers)}" for _ in range(3)]
    for worker in workers:
        search.start("worker", worker, "--slots", "2")
    model = search.model("b0")
    dead: list[str] = []
    for number in range(ROUNDS):
        tasks = [python_task("mine:Square", x=3, sleep_s=0.02) for _ in range(EACH)]
        await model.submit(tasks)
        worker = workers.pop(0)
        search.kill(worker)
        workers.append(f"w{next(numbers)}")
        search.start("worker", workers[-1], "--slots", "2")
        if dead:  # for a whole round: its log was adopted
            search.start("broker", dead.pop(), "--segment-bytes", "10000")
        else:
            victim = chance.choice(BROKERS if number else BROKERS[:1])
            search.kill(victim)
            dead.append(victim)
            if chance.random() < 0.5:
                search.start("broker", dead.pop(), "--segment-bytes", "10000")
        await model.collect(EACH * number + chance.randrange(EACH))
        await asyncio.sleep(chance.random())
    await model.collect(EACH * ROUNDS)
    model.check()
    assert {r.outcome for r in model.results} == {m.SUCCEEDED}
    assert "Traceback" not in search.logs()
