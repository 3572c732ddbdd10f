"""Many workers at one broker: simulated ones with real connections; and how busy 16 real ones are.

python -m benchmarks.search_scale JOB_DIR FIRST COUNT SLOTS      simulates workers, until killed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.report import Load, Result
from benchmarks.search_rig import model_of, program, rate, searching, start_workers, task
from dlctl import contract
from dlctl.contract import search as names
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import read_endpoints
from search.protocol.stubs import BrokerStub

_FEW, _MANY, _SLOTS = 10, (1000, 1000, 20), 8
_TASKS = 16_000, 4000, 100
_SIMULATORS = 2
_BUSY_WORKERS, _TRIALS = (16, 16, 2), (20, 3, 1)


def scale(load: Load) -> Iterator[Result]:
    """Yield the rate with many workers beside that with few, and the memory that each one takes."""
    few, few_bytes = _rate_and_memory(_FEW, _TASKS[load])
    many, many_bytes = _rate_and_memory(_MANY[load], _TASKS[load])
    yield Result("search_scale", "tasks/s", round(many, 1), round(few, 1))
    memory_kb = (many_bytes - few_bytes) / (_MANY[load] - _FEW) / 1000
    yield Result("search_scale_memory", "kB / worker", round(memory_kb, 1), 0.0)


def _rate_and_memory(workers: int, count: int) -> tuple[float, int]:
    """Return tasks a second, and the memory that the broker has when all are connected."""
    with searching() as search, contextlib.ExitStack() as stack:
        search.broker()
        each = workers // _SIMULATORS
        simulators = [
            stack.enter_context(program(
                "benchmarks.search_scale", str(search.job_dir), str(n * each), str(each),
                str(_SLOTS),
            )) for n in range(_SIMULATORS)
        ]  # fmt: skip
        for simulator in simulators:
            assert simulator.stdout is not None
            if simulator.stdout.readline() != "connected\n":
                raise RuntimeError("the simulated workers did not connect")
        pages = int(Path(f"/proc/{search.processes['b1'].pid}/statm").read_text().split()[1])
        return rate(search, count), pages * os.sysconf("SC_PAGE_SIZE")


async def simulate(job_dir: Path, first: int, count: int, slots: int) -> None:
    """Be many workers, each with a connection of its own, whose tasks take no time."""
    credentials = Credentials.load(job_dir, "worker")
    (endpoint,) = read_endpoints(job_dir)
    free = m.Needs(cpus=slots, memory_bytes=1 << 40)
    starting = asyncio.Semaphore(16)

    async def be(number: int, connected: asyncio.Event) -> None:
        name = f"w{number}"
        async with open_channel(endpoint.address, credentials) as channel:
            stub = BrokerStub(channel)
            async with starting:
                await stub.Exchange(m.ExchangeRequest(worker=name), timeout=60)
            connected.set()
            results: list[m.Result] = []
            while True:
                request = m.ExchangeRequest(
                    worker=name, results=results, want=slots, free=free, has=free, wait_s=30.0
                )
                try:
                    reply = await stub.Exchange(request, timeout=60)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.5)
                    continue
                results = [
                    m.Result(task_id=each.task.id, lease_id=each.id, outcome=m.SUCCEEDED,
                             worker=name)
                    for each in reply.leases
                ]  # fmt: skip

    events = [asyncio.Event() for _ in range(count)]
    workers = [asyncio.ensure_future(be(first + n, event)) for n, event in enumerate(events)]
    for event in events:
        await event.wait()
    print("connected", flush=True)
    await asyncio.gather(*workers)


def busy(load: Load) -> Result:
    """Return how many one-second trials the workers end in a second; one each is all they can.

    The model is the real one with the paper's strategy. The clock runs from the first trial's start
    to the last one's end; the slots' processes are there before it starts.
    """
    workers = _BUSY_WORKERS[load]
    trials = workers * _TRIALS[load]
    with searching() as search:
        search.broker(names.FIRST_BROKER)  # the model sends to no other
        start_workers(search, workers, 1)
        asyncio.run(_warm_up(search, workers))
        _write_spec(search.job_dir, trials, workers)
        argv = [sys.executable, "-m", "search.model", str(search.job_dir)]
        subprocess.run(argv, check=True, timeout=30 + 3 * trials / workers)
        lines = (search.job_dir / names.TRIALS).read_text().splitlines()
    results = [event for event in map(json.loads, lines) if event["event"] == "tell"]
    if len(results) != trials or any(event["outcome"] != "SUCCEEDED" for event in results):
        raise RuntimeError(f"{len(results)} of {trials} trials: {results[-1:]}")
    began = min(event["started_at"] for event in results)
    ended = max(event["started_at"] + event["seconds"] for event in results)
    return Result("search_nas", "tasks/s", round(trials / (ended - began), 3), workers)


async def _warm_up(search: Any, workers: int) -> None:
    async with model_of(search, names.FIRST_BROKER) as model:
        await model.run(2 * workers, lambda: task("bench:Sleeps"))


def _write_spec(job_dir: Path, trials: int, workers: int) -> None:
    spec = names.Spec(
        name="busy", space=[names.Parameter("x", "float", 0.0, 1.0)], metric="loss",
        task=names.Task("python", "bench:Sleeps", time_limit_s=60.0), strategy="genetic",
        budget=names.Budget(trials), workers=names.Workers(workers, workers),
        heartbeat_s=1.0, heartbeat_timeout_s=10.0, network="lo",
    )  # fmt: skip
    contract.write_whole(job_dir / names.SPEC, contract.to_json(spec))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(simulate(Path(sys.argv[1]), *map(int, sys.argv[2:])))
