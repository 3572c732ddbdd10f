"""Send trials to a broker and take their results, whatever happens to brokers meanwhile.

Beside that, count the time that workers have been there, which a budget of node-hours pays for.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import grpc

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.search import FIRST_BROKER, Spec
from search.model.state import Ended, Search
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import Endpoint, read_endpoint
from search.protocol.stubs import BrokerStub
from search.strategies import Trial

NAME = "model"
_WAIT_S = 1.0
"""How long a broker waits for the first result."""
_PATIENCE_S = 10.0
"""A call that has no answer after so long has failed."""
_BATCH = 1000
_LOOK_S = 5.0


class Driver:
    """The loop of the model.

    All tasks go to the first broker: others borrow from it. When its connection breaks, or it has
    begun again, here or beside a peer, the outstanding ones are sent once more, under the same ids:
    an incarnation that took them over ignores them.
    """

    def __init__(self, search: Search, job_dir: Path) -> None:
        self.search, self._job_dir = search, job_dir
        self._spec: Spec = search.spec
        self._credentials = Credentials.load(job_dir, NAME)
        self._unsent: list[Trial] = []
        self._room = 0
        self._cursor = 0
        self._incarnation = 0
        self._last_problem = ""
        self._most, self._look_at = 0, 0.0

    async def run(self) -> None:
        """Search until nothing is left to do.

        Raises:
            HopelessError: Trials fail, and none has ended well.
            StrategyError: The strategy goes wrong.
        """
        count = asyncio.ensure_future(count_workers(self._job_dir, self._add_node_time))
        began_at, used_s = time.monotonic(), self.search.used_s
        try:
            while not self.search.is_done():
                # There its first broker listens: itself, or a peer that has adopted it.
                if (endpoint := read_endpoint(self._job_dir, FIRST_BROKER)) is not None:
                    await self._talk(endpoint, lambda: used_s + time.monotonic() - began_at)
                self.search.look()
                await asyncio.sleep(0.2)
            self.search.give_up_in_vain()
        finally:
            count.cancel()

    def _add_node_time(self, seconds: float) -> None:
        self.search.used_node_s += seconds

    async def _talk(self, endpoint: Endpoint, used_s: Callable[[], float]) -> None:
        """Send trials to one broker and take their results until it does not answer."""
        async with open_channel(endpoint.address, self._credentials) as channel:
            stub = BrokerStub(channel)
            self._cursor, self._incarnation = 0, 0
            self._send_again()
            try:
                while not self.search.is_done():
                    self.search.used_s = used_s()
                    await self._fill(stub)
                    if self.search.spent(by_trials=False):
                        await self._withdraw(stub)
                    await self._take(stub)
            except grpc.aio.AioRpcError as error:
                problem = f"{error.code().name}: {error.details()}"
                if problem != self._last_problem:  # once, not at each try
                    self._last_problem = problem
                    sys.stderr.write(
                        f"dlctl: the broker {endpoint.name} at {endpoint.address} does not answer: "
                        f"{problem}; trying again\n"
                    )

    def _send_again(self) -> None:
        self._unsent = [self.search.trials[number] for number in sorted(self.search.outstanding)]
        self._room = _BATCH

    def _window(self) -> int:
        if self._spec.window:
            return self._spec.window
        return 2 * max(1, self._workers() * self._spec.workers.slots)

    def _workers(self) -> int:
        """Return how many workers there may be, which `dlctl search scale` changes."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            pools = contract.read_record(names.Pools, self._job_dir / names.POOLS)
            self._most = self._spec.workers.most if pools is None else pools.most
        return self._most

    async def _fill(self, stub: BrokerStub) -> None:
        while n := self.search.wanted(self._window()):
            self._unsent += self.search.ask(n)
        self._unsent = [each for each in self._unsent if self._id(each)]  # others ended meanwhile
        while self._unsent and self._room > 0:
            batch = self._unsent[: min(_BATCH, self._room)]
            request = m.SubmitRequest(model=NAME, tasks=[self._task(trial) for trial in batch])
            reply = await stub.Submit(request, timeout=_PATIENCE_S)
            sent = set(reply.accepted)
            self._room = reply.room
            self._unsent = [each for each in self._unsent if self._id(each) not in sent]
            if not sent:
                break

    async def _withdraw(self, stub: BrokerStub) -> None:
        """Take back what nobody runs: the time is used up. Those that run end."""
        ids = list(self.search.outstanding.values())
        request = m.CancelRequest(model=NAME, task_ids=ids, waiting_only=True)
        await stub.Cancel(request, timeout=_PATIENCE_S)

    async def _take(self, stub: BrokerStub) -> None:
        request = m.ResultsRequest(model=NAME, cursor=self._cursor, most=_BATCH, wait_s=_WAIT_S)
        reply = await stub.Results(request, timeout=_PATIENCE_S + _WAIT_S)
        if self._incarnation not in (0, reply.incarnation):
            self._cursor, self._incarnation = 0, reply.incarnation
            self._send_again()
            return
        self._incarnation = reply.incarnation
        stopped = [  # first: some may be the last that a trial said before it ended
            report.task_id for report in reply.reports
            if not self.search.report(report.task_id, report.step, dict(report.metrics))
        ]  # fmt: skip
        for accepted in reply.results:
            self.search.end(accepted.result.task_id, ended_of(accepted))
        self.search.give_up_in_vain()
        if not reply.results:
            self.search.look()
        self._cursor = reply.cursor
        self._room = max(self._room, len(reply.results), 1)  # one may ask whether there is room
        if stopped:
            cancel = m.CancelRequest(model=NAME, task_ids=stopped)
            await stub.Cancel(cancel, timeout=_PATIENCE_S)

    def _id(self, trial: Trial) -> str | None:
        return self.search.outstanding.get(trial.number)

    def _task(self, trial: Trial) -> Any:
        task = self._spec.task
        needs = m.Needs(cpus=task.cpus, gpus=task.gpus, memory_bytes=task.memory_bytes or 0,
                        labels=task.labels)  # fmt: skip
        return m.Task(
            id=self.search.outstanding[trial.number],
            type=task.kind,
            payload=json.dumps(self._payload(trial)).encode(), encoding="json",
            time_limit_s=task.time_limit_s, needs=needs, origin=NAME,
            checkpoint=self._checkpoint(trial),
        )  # fmt: skip

    def _checkpoint(self, trial: Trial) -> str:
        """Return the folder that a trial goes on from, in the job directory; empty: none."""
        if trial.parent is None:
            return ""
        return f"{names.TASKS}/{self.search.task_ids[trial.parent]}/checkpoint"

    def _payload(self, trial: Trial) -> dict[str, Any]:
        """Return what a trial's program gets."""
        task = self._spec.task
        if task.type == "training":
            arguments = {
                "job_dir": str(self._job_dir), "overrides": trial.point,
                "metric": self._spec.metric, "generation": self.search.generation(trial),
            }  # fmt: skip
            return {"target": "search.tasks.training:Training", "arguments": arguments}
        key = "command" if task.type == "exec" else "target"
        return {key: task.target, "arguments": {**task.constants, **trial.point}}


def ended_of(accepted: Any) -> Ended:
    """Return how a trial ended, from the broker's message."""
    result = accepted.result
    value: Any = None
    error = result.error
    if result.value:
        try:
            value = json.loads(result.value)
        except (ValueError, RecursionError) as wrong:
            error = error or f"its value can't be read as JSON: {wrong}"
    return Ended(
        m.Outcome.Name(result.outcome), value, dict(accepted.metrics), error, result.worker,
        result.seconds, result.started_at,
    )  # fmt: skip


LOOK_S = 2.0
_BROKER_SILENCE_S = 15.0
"""A broker tells every second; one that told earlier than this ago is gone."""
_WORKER_SILENCE_S = 75.0
"""A worker without a task calls at least once a minute."""


async def count_workers(job_dir: Path, add: Callable[[float], None]) -> NoReturn:
    """Look how many workers there are, for ever.

    Args:
        add: Takes the worker-seconds since the last look.
    """
    counted_at = time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        count = len(await asyncio.to_thread(workers_there, job_dir, time.time()))
        now = time.monotonic()
        add(count * (now - counted_at))
        counted_at = now


def workers_there(job_dir: Path, now: float) -> set[str]:
    """Return the names of the workers that brokers have heard of lately.

    Args:
        now: Unix seconds.
    """
    found = set()
    for path in (job_dir / names.BROKERS).glob(f"*/{names.BROKER_STATUS}"):
        status = contract.readable_record(names.BrokerStatus, path)
        if status is not None and now - status.time < _BROKER_SILENCE_S:
            found |= {each.name for each in status.workers if each.seen_s_ago < _WORKER_SILENCE_S}
    return found
