"""Processes of a search are killed: how soon its work goes on, and whether a result is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.report import Load, Result
from benchmarks.search_rig import searching, start_workers, task
from search.hub.__main__ import TICK_S
from search.protocol.children import Child

_INCARNATION_BITS = 40
_BROKERS, _WORKERS = ("b1", "b2"), ("w1", "w2", "w3", "w4")
_OUTSTANDING = 100
_RUNS = 5, 1, 1
_SILENCE_S = 10.0, 10.0, 2.0
"""How long a worker may be silent."""


def recover(load: Load) -> Iterator[Result]:
    """Yield how soon work goes on after a broker, a worker or a worker's node was lost."""
    measures = {"broker": broker_s, "worker": worker_s, "node": lambda: node_s(_SILENCE_S[load])}
    for what, measure in measures.items():
        runs = 1 if what == "node" else _RUNS[load]
        times_s = [measure() for _ in range(runs)]
        yield Result(
            f"search_recover_{what}", "s", round(statistics.median(times_s), 3), 0.0, runs=runs
        )


def broker_s() -> float:
    """Return the time from a broker's death to the start of the first task of its successor.

    The successor is started as the hub starts it.
    """
    with searching() as search, _as_the_hub(search, "b1") as child:
        start_workers(search, 1, 2)

        async def run() -> float:
            model = search.model()
            await model.submit([task("bench:Sleeps", seconds=0.05) for _ in range(200)])
            await model.collect(20)
            assert child.process is not None
            child.process.kill()
            killed_at = time.time()
            results = await model.collect(200)
            model.check()
            last = max(result.lease_id >> _INCARNATION_BITS for result in results)
            began = min(r.started_at for r in results if r.lease_id >> _INCARNATION_BITS == last)
            if last < 2:
                raise RuntimeError("no task was leased after the broker's death")
            return began - killed_at

        return asyncio.run(run())


@contextlib.contextmanager
def _as_the_hub(search: Any, broker: str) -> Iterator[Child]:
    """Keep a broker alive by the hub's own code."""
    arguments = ["search.broker", str(search.job_dir), "--name", broker]
    child = Child("broker", arguments, search.job_dir / "logs")
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(TICK_S):
            child.look()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        endpoint = search.job_dir / "search/endpoints" / f"{broker}.json"
        search.wait_for(endpoint.exists)
        yield child
    finally:
        ended.set()
        keeper.join()
        child.end(5.0)


def worker_s() -> float:
    """Return the time from a worker's death to the start of its task at another worker."""
    return _lose_worker(signal.SIGKILL)


def node_s(silence_s: float) -> float:
    """Return the same for a worker that falls silent, as on a lost node: its connections stay."""
    return _lose_worker(signal.SIGSTOP, heartbeat_timeout_s=silence_s)


def _lose_worker(number: signal.Signals, **settings: float) -> float:
    with searching(**settings) as search:
        search.broker()
        start_workers(search, 1, 1)

        async def run() -> float:
            model = search.model()
            await model.submit([task("bench:Sleeps", seconds=0.1)])
            await model.collect(1)
            lost = search.job_dir / "lost"  # its worker must not end the task before
            await model.submit([task("bench:Waits", file=str(lost))])
            while (await model.status()).processing == 0:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(_start_other, search)
            await asyncio.sleep(0.3)  # the other one waits for a task
            os.kill(search.processes["w0"].pid, number)
            lost_at = time.time()
            lost.touch()
            result = (await model.collect(2, most_s=60))[1]
            model.check()
            if result.worker != "other":
                raise RuntimeError("the worker ended its task before it was lost")
            return float(result.started_at - lost_at)

        return asyncio.run(run())


def _start_other(search: Any) -> None:
    search.start("worker", "other", "--slots", "1")
    log = search.job_dir / "other.log"
    search.wait_for(lambda: "takes tasks" in log.read_text())


def lost(kills: int) -> Result:
    """Return how many acknowledged tasks lack their one result after so many kills.

    Two brokers, each with a model that keeps it busy, and four workers; one of the six dies at a
    time, and another as soon as work goes on.
    """
    with searching(heartbeat_s=0.5, heartbeat_timeout_s=3.0) as search:
        search.nameserver()
        for name in _BROKERS:
            search.broker(name)
        for name in _WORKERS:
            search.start("worker", name, "--slots", "2")
        models = [search.model(name, f"model-{name}") for name in _BROKERS]
        asyncio.run(_kill_and_feed(search, models, kills))
    missing = twice = 0
    for model in models:
        ids = [result.task_id for result in model.results]
        missing += len(model.acknowledged - set(ids))
        twice += len(ids) - len(set(ids))
    tasks = sum(len(model.acknowledged) for model in models)
    print(f"search_lost: {tasks} tasks, {kills} kills: {missing} without, {twice} with two results",
          file=sys.stderr)  # fmt: skip
    return Result("search_lost", "results", float(missing + twice), 0.0, runs=kills)


async def _kill_and_feed(search: Any, models: list[Any], kills: int) -> None:
    ended = asyncio.Event()
    feeding = [asyncio.ensure_future(_feed(model, ended)) for model in models]
    chosen = random.Random(1)
    try:
        for _ in range(kills):
            count = sum(len(model.results) for model in models)
            end = time.monotonic() + 60
            while sum(len(model.results) for model in models) < count + 10:
                await asyncio.sleep(0.02)
                if any(each.done() for each in feeding) or time.monotonic() > end:
                    raise RuntimeError(f"the work does not go on\n{search.logs()}")
            await asyncio.sleep(chosen.uniform(0, 0.3))
            name = chosen.choice(_BROKERS + _WORKERS)
            await asyncio.to_thread(_replace, search, name)
    finally:
        ended.set()
    await asyncio.gather(*feeding)


def _replace(search: Any, name: str) -> None:
    search.kill(name)
    if name in _BROKERS:
        search.broker(name)
    else:
        search.start("worker", name, "--slots", "2")


async def _feed(model: Any, ended: asyncio.Event) -> None:
    while not ended.is_set():
        missing = _OUTSTANDING - (len(model.acknowledged) - len(model.results))
        if missing > _OUTSTANDING // 2:
            await model.submit([task("bench:Sleeps", seconds=0.01) for _ in range(missing)])
        await model.look(0.3)
    with contextlib.suppress(AssertionError):  # what is missing is counted
        await model.collect(len(model.acknowledged), most_s=60)
