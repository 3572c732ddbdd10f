"""Real brokers, workers and nameserver for the search's benchmark, and a model that is fast."""

from __future__ import annotations

import asyncio
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from benchmarks.learners import REPOSITORY
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel, open_server
from search.protocol.stubs import BrokerStub

PROGRAM = """\
import os, time
from search.tasks import BaseTask

class Empty(BaseTask):
    def run(self):
        return None

class Sleeps(BaseTask):
    def __init__(self, seconds=1.0, x=0.0):
        self.seconds, self.x = seconds, x

    def run(self):
        time.sleep(self.seconds)
        return {"loss": self.x}

class Waits(BaseTask):
    def __init__(self, file):
        self.file = file

    def run(self):
        while not os.path.exists(self.file):
            time.sleep(0.02)
"""
_BATCH, _BATCHES_AT_A_TIME = 500, 3
_MOST = 5000
_LASTS_S = 120.0


@contextmanager
def searching(**settings: Any) -> Iterator[Any]:
    """Yield a search in a folder of its own; its processes end with the block."""
    from search_processes import Search

    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        search = Search(
            Path(folder), **({"heartbeat_s": 1.0, "heartbeat_timeout_s": 10.0} | settings)
        )
        (search.job_dir / "code/bench.py").write_text(PROGRAM)
        try:
            yield search
        finally:
            search.stop()


def start_workers(search: Any, count: int, slots: int, *options: str) -> None:
    """Start workers, and wait until each has found its broker."""
    names = [f"w{number}" for number in range(count)]
    for name in names:
        search.start("worker", name, "--slots", str(slots), *options)
    logs = [search.job_dir / f"{name}.log" for name in names]
    search.wait_for(lambda: all("takes tasks" in log.read_text() for log in logs), 60)


def empty() -> m.Task:
    """Return a task that does nothing."""
    return task("bench:Empty")


def task(target: str, **arguments: Any) -> m.Task:
    """Return a Python task."""
    payload = json.dumps({"target": target, "arguments": arguments}).encode()
    return m.Task(id=secrets.token_hex(16), type="python", payload=payload, encoding="json",
                  time_limit_s=60.0)  # fmt: skip


class Model:
    """Sends tasks in large calls, some at a time, and takes results meanwhile."""

    def __init__(self, stub: BrokerStub, name: str = "bench") -> None:
        self._stub, self._name, self._cursor = stub, name, 0

    async def run(self, count: int, make: Callable[[], m.Task] = empty) -> list[m.Result]:
        """Run so many tasks; return their results.

        Raises:
            RuntimeError: One has failed.
        """
        sending = asyncio.ensure_future(self._send(count, make))
        found: list[m.Result] = []
        while len(found) < count:
            request = m.ResultsRequest(
                model=self._name, cursor=self._cursor, most=_MOST, wait_s=5.0
            )
            reply = await self._stub.Results(request, timeout=_LASTS_S)
            self._cursor = reply.cursor
            found += [each.result for each in reply.results]
        await sending
        if failed := [result for result in found if result.outcome != m.SUCCEEDED]:
            raise RuntimeError(f"{len(failed)} tasks failed: {failed[0].error}")
        return found

    async def _send(self, count: int, make: Callable[[], m.Task]) -> None:
        turns = asyncio.Semaphore(_BATCHES_AT_A_TIME)

        async def send(size: int) -> None:
            request = m.SubmitRequest(model=self._name, tasks=[make() for _ in range(size)])
            try:
                reply = await self._stub.Submit(request, timeout=_LASTS_S)
            finally:
                turns.release()
            if len(reply.accepted) < size:
                raise RuntimeError(f"the broker took {len(reply.accepted)} of {size} tasks")

        calls = []
        for at in range(0, count, _BATCH):
            await turns.acquire()
            calls.append(asyncio.ensure_future(send(min(_BATCH, count - at))))
        await asyncio.gather(*calls)


@asynccontextmanager
async def model_of(search: Any, broker: str = "b1") -> AsyncIterator[Model]:
    """Yield a model that is connected to a broker."""
    credentials = Credentials.load(search.job_dir, "model")
    async with open_channel(search.address(broker), credentials) as channel:
        yield Model(BrokerStub(channel))


def rate(search: Any, count: int, broker: str = "b1") -> float:
    """Return how many empty tasks a second a search runs."""

    async def run() -> float:
        async with model_of(search, broker) as model:
            await model.run(count // 5)
            began = time.perf_counter()
            await model.run(count)
            return count / (time.perf_counter() - began)

    return asyncio.run(run())


def latency_s(search: Any, count: int) -> float:
    """Return the median time of one task, there and back."""

    async def run() -> float:
        async with model_of(search) as model:
            await model.run(20)
            return await _median_s(lambda: model.run(1), count)

    return asyncio.run(run())


def bare_latency_s(search: Any, count: int) -> float:
    """Return the median time of a bare call: mutual TLS, and a server that knows nothing."""
    address = search.job_dir / "bare"

    async def run() -> float:
        credentials = Credentials.load(search.job_dir, "model")
        async with open_channel(address.read_text(), credentials) as channel:
            call = channel.unary_unary("/bare/Echo")
            await call(b"x")
            return await _median_s(lambda: call(b"x" * 100), count)

    with program("benchmarks.search_rig", str(search.job_dir)):
        search.wait_for(address.exists)
        return asyncio.run(run())


@contextmanager
def program(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a module of the benchmark; its output is a pipe."""
    argv = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def _median_s(act: Callable[[], Any], count: int) -> float:
    times_s = []
    for _ in range(count):
        began = time.perf_counter()
        await act()
        times_s.append(time.perf_counter() - began)
    return statistics.median(times_s)


async def _serve_bare(job_dir: Path) -> None:
    async def echo(request: bytes, context: Any) -> bytes:  # noqa: ARG001
        return request

    methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    handler = grpc.method_handlers_generic_handler("bare", methods)
    server, address = open_server("127.0.0.1", Credentials.load(job_dir, "broker"), [handler])
    await server.start()
    writing = job_dir / "bare.new"
    writing.write_text(address)
    writing.rename(job_dir / "bare")
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve_bare(Path(sys.argv[1])))
