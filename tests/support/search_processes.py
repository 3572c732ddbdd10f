"""The processes of a search on this machine: real, with keys of their own, and killed for sure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from search_keys import write_keys

from dlctl import contract
from dlctl.contract import search as files
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import read_endpoints, read_nameserver
from search.protocol.stubs import BrokerStub

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
"""For hopeless cases: on a busy machine everything is late."""
CODE = (Path(__file__).parent / "search_tasks.py").read_text()


class Search:
    """A job directory, and the processes that were started for it."""

    def __init__(self, job_dir: Path, **settings: Any) -> None:
        self.job_dir = job_dir
        write_keys(job_dir)
        for folder in ("code", files.OUTBOXES, files.TASKS):  # as the hub makes them
            (job_dir / folder).mkdir()
        (job_dir / "code" / "mine.py").write_text(CODE)
        spec = files.Spec(
            name="test",
            **(
                {
                    "strategy": "random",
                    "space": [],
                    "task": files.Task(type="python"),
                    "network": "lo",
                }
                | {"heartbeat_s": 0.5, "heartbeat_timeout_s": 3.0}
                | settings
            ),
        )
        self._spec = spec
        contract.write_whole(job_dir / files.SPEC, contract.to_json(spec))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """The newest of each name."""
        self._all: list[subprocess.Popen[bytes]] = []

    def bear_silence(self, timeout_s: float) -> None:
        """Take silence for death only after this long, in processes that start from now on."""
        spec = dataclasses.replace(self._spec, heartbeat_timeout_s=timeout_s)
        contract.write_whole(self.job_dir / files.SPEC, contract.to_json(spec))

    def start(self, kind: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a nameserver, a broker, a worker, or dlctl's model."""
        named = [] if kind in ("nameserver", "model") else ["--name", name]
        with (self.job_dir / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", f"search.{kind}", str(self.job_dir), *named, *arguments],
                cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        return self.add(name, started)

    def add(self, name: str, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Take a process that ends with the others."""
        self.processes[name] = process
        self._all.append(process)
        return process

    def broker(self, name: str = "b1", *arguments: str) -> None:
        """Start a broker, and wait until it listens."""
        before = {e.name: e.incarnation for e in read_endpoints(self.job_dir)}.get(name, 0)
        self.start("broker", name, *arguments)
        self.wait_for(
            lambda: any(
                e.name == name and e.incarnation > before for e in read_endpoints(self.job_dir)
            )
        )

    def with_worker(self, *arguments: str) -> Model:
        """Start the broker b1 and the worker w1; return a model."""
        self.broker()
        self.start("worker", "w1", *arguments)
        return self.model()

    def start_with_helper(self, *arguments: str) -> None:
        """Start the broker b1 with the worker w1, and b2, which the model of a test talks to."""
        self.broker("b1")
        self.start("worker", "w1", "--slots", "1", *arguments)
        self.wait_for(lambda: "takes tasks from the broker b1" in self.logs())
        self.broker("b2")

    def start_with_model(self) -> None:
        """Start the broker b0, one worker, and dlctl's model."""
        self.broker("b0")
        self.start("worker", "w1", "--slots", "1", "--cpus", "1")
        self.start("model", "model")

    def nameserver(self) -> None:
        """Start the nameserver, and wait until it listens."""
        before = read_nameserver(self.job_dir)
        self.start("nameserver", "nameserver")
        self.wait_for(lambda: read_nameserver(self.job_dir) != before)

    def wait_for(self, ready: Callable[[], object], most_s: float = PATIENCE_S) -> None:
        end = time.monotonic() + most_s
        while not ready():
            ended = [n for n, p in self.processes.items() if p.poll() not in (None, 0, -9, -15)]
            assert not ended and time.monotonic() < end, f"{ended}\n{self.logs()}"
            time.sleep(0.01)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def logs(self) -> str:
        return "\n".join(
            f"--- {p.name}\n{p.read_text(errors='replace')}" for p in self.job_dir.glob("*.log")
        )

    def stop(self) -> None:
        """End everything: politely, then not; workers first, who bring their brokers results."""
        for process in self._all:
            process.send_signal(signal.SIGCONT)
        workers = [each for each in self._all if "search.worker" in each.args]
        others = [each for each in self._all if each not in workers]
        for processes in (workers, others):
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
                process.kill()
                process.wait()

    def address(self, broker: str = "b1") -> str:
        return next(e.address for e in read_endpoints(self.job_dir) if e.name == broker)

    def model(self, broker: str = "b1", name: str = "model") -> Model:
        return Model(self, broker, name)


def python_task(target: str, time_limit_s: float = 30.0, **arguments: Any) -> m.Task:
    payload = json.dumps({"target": target, "arguments": arguments}).encode()
    return m.Task(
        id=secrets.token_hex(16), type="python", payload=payload, encoding="json",
        time_limit_s=time_limit_s,
    )  # fmt: skip


def exec_task(command: str, time_limit_s: float = 30.0, **arguments: Any) -> m.Task:
    payload = json.dumps({"command": command, "arguments": arguments}).encode()
    return m.Task(
        id=secrets.token_hex(16), type="exec", payload=payload, encoding="json",
        time_limit_s=time_limit_s,
    )  # fmt: skip


def patient_task(may_end: Path) -> m.Task:
    """Return a task that runs until a file is there, so that a test decides who brings its 9."""
    return exec_task(f"until [ -e '{may_end}' ]; do sleep 0.02; done; echo 9", 120.0)


class Model:
    """A model that submits tasks and collects their results, whatever happens to its broker."""

    def __init__(self, search: Search, broker: str, name: str) -> None:
        self._search, self._broker, self.name = search, broker, name
        self.cursor = 0
        self.results: list[m.Result] = []
        self.acknowledged: set[str] = set()

    async def _call(self, method: str, request: Any, most_s: float = PATIENCE_S) -> Any:
        import asyncio

        import grpc.aio

        end = time.monotonic() + most_s
        while True:
            credentials = Credentials.load(self._search.job_dir, "model")
            async with open_channel(self._search.address(self._broker), credentials) as channel:
                try:
                    return await getattr(BrokerStub(channel), method)(request, timeout=3.0)
                except grpc.aio.AioRpcError:
                    if time.monotonic() > end:
                        raise
            await asyncio.sleep(0.05)

    async def submit(self, tasks: Iterable[m.Task]) -> m.SubmitReply:
        reply = await self._call("Submit", m.SubmitRequest(model=self.name, tasks=tasks))
        self.acknowledged.update(reply.accepted)
        return reply

    async def cancel(self, ids: Iterable[str]) -> None:
        await self._call("Cancel", m.CancelRequest(model=self.name, task_ids=ids))

    async def collect(self, count: int, most_s: float = PATIENCE_S) -> list[m.Result]:
        """Wait until there are so many results in all."""
        end = time.monotonic() + most_s
        while len(self.results) < count:
            assert time.monotonic() < end, f"{len(self.results)} of {count}\n{self._search.logs()}"
            await self.look(1.0)
        return self.results

    async def look(self, wait_s: float) -> m.ResultsReply:
        request = m.ResultsRequest(model=self.name, cursor=self.cursor, most=1000, wait_s=wait_s)
        reply = await self._call("Results", request)
        self.results += [each.result for each in reply.results]
        self.cursor = reply.cursor
        return reply

    async def status(self) -> m.StatusReply:
        return await self._call("Status", m.StatusRequest())

    async def wait_for(self, ready: Callable[[m.StatusReply], object]) -> m.StatusReply:
        """Return the broker's first status that is as a test waits for."""
        import asyncio

        end = time.monotonic() + PATIENCE_S
        while not ready(status := await self.status()):
            assert time.monotonic() < end, f"{status}\n{self._search.logs()}"
            await asyncio.sleep(0.02)
        return status

    def check(self) -> None:
        """Each acknowledged task has exactly one accepted result."""
        ids = [result.task_id for result in self.results]
        assert len(ids) == len(set(ids)), "a task has two results"
        assert set(ids) == self.acknowledged
