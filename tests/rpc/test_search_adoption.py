"""Brokers help each other: one that is gone is adopted by one peer, loans go back to the owner."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from broker_in_process import broker_in
from event_loops import in_loop
from search_processes import Search, patient_task, python_task

from dlctl import contract
from dlctl.contract import search as files
from search.broker.service import BrokerService
from search.journal.epochs import LEFT, RETIRED, Holder, incarnations
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_server
from search.protocol.endpoints import Endpoint, read_endpoint, write_endpoint
from search.protocol.stubs import make_handler

SLOW = {"x": 2, "sleep_s": 0.05}


def state_of(search: Search, broker: str) -> str:
    folder = search.job_dir / files.BROKERS / broker
    holder = contract.read_record(Holder, folder / f"{incarnations(folder)[-1]}.lease")
    assert holder is not None
    return holder.state


@pytest.mark.first
@in_loop
async def test_a_peer_adopts_a_broker_that_is_gone(search: Search) -> None:
    search.broker("b0")
    search.start("worker", "w1", "--slots", "2")
    search.wait_for(lambda: "takes tasks from the broker b0" in search.logs())
    search.broker("b1")
    model = search.model("b0")
    await model.submit([python_task("mine:Square", **SLOW) for _ in range(60)])
    await model.collect(10)
    await model.wait_for(lambda status: status.results >= 5)
    search.kill("b0")
    await model.collect(60)
    model.check()
    assert all(r.outcome == m.SUCCEEDED for r in model.results)
    assert "adopts the broker b0" in (search.job_dir / "b1.log").read_text()
    await model.look(0.1)  # it has them all
    search.wait_for(lambda: read_endpoint(search.job_dir, "b0") is None)
    search.wait_for(lambda: state_of(search, "b0") == RETIRED)


@in_loop
async def test_a_peer_that_adopted_and_dies_is_adopted_with_what_it_had(search: Search) -> None:
    for name in ("b0", "b1"):
        search.broker(name)
    model = search.model("b0")
    await model.submit([python_task("mine:Square", x=number) for number in range(20)])
    search.kill("b0")
    search.wait_for(lambda: "adopts the broker b0" in search.logs())
    search.wait_for(lambda: incarnations(search.job_dir / files.BROKERS / "b0") == [2])
    search.broker("b2")
    search.kill("b1")
    search.start("worker", "w1", "--slots", "2")
    await model.collect(20)
    model.check()


@in_loop
async def test_a_broker_that_is_started_again_takes_its_log_back(search: Search) -> None:
    search.broker("b0")
    search.broker("b1")
    model = search.model("b0")
    await model.submit([python_task("mine:Square", **SLOW) for _ in range(40)])
    search.kill("b0")
    search.start("worker", "w1", "--slots", "2")
    await model.collect(5)
    search.broker("b0")
    await model.collect(40)
    model.check()
    search.wait_for(lambda: "another incarnation of the broker b0 has begun" in search.logs())
    assert search.processes["b1"].poll() is None
    endpoint = read_endpoint(search.job_dir, "b0")
    assert endpoint is not None and endpoint.incarnation == 3


@in_loop
async def test_a_broker_that_leaves_hands_back_what_it_borrowed(search: Search) -> None:
    """The owner would bear silence for an hour."""
    search.bear_silence(3600)
    search.broker("b1")
    worker = search.start("worker", "w1", "--slots", "1", "--grace-s", "0.2")
    search.wait_for(lambda: "takes tasks from the broker b1" in search.logs())
    search.broker("b0")
    model = search.model("b0")
    await model.submit([python_task("mine:Square", x=3, sleep_s=60)])
    await model.wait_for(lambda status: status.processing)
    for process in (worker, search.processes["b1"]):
        os.kill(process.pid, signal.SIGTERM)
    search.wait_for(lambda: search.processes["b1"].poll() == 0)
    status = await model.status()
    assert (status.owned, status.processing, status.dropped) == (1, 0, 0), search.logs()
    assert state_of(search, "b1") == RETIRED
    assert read_endpoint(search.job_dir, "b1") is None
    await model.cancel(model.acknowledged)
    (result,) = await model.collect(1)
    assert result.outcome == m.CANCELLED


class SlowLender(BrokerService):
    """A broker that answers only once it may, after it has given a task away."""

    lent, may_answer = asyncio.Event(), asyncio.Event()

    async def Lend(self, request: m.LendRequest, context: Any) -> m.LendReply:
        reply = await super().Lend(request, context)
        if reply.leases:
            self.lent.set()
            await self.may_answer.wait()
        return reply


@in_loop
async def test_a_broker_that_leaves_waits_for_the_loan_that_it_asked_for(search: Search) -> None:
    search.broker("b1")
    search.start("worker", "w1", "--slots", "1")
    search.wait_for(lambda: "takes tasks from the broker b1" in search.logs())
    folder = search.job_dir / files.BROKERS / "b0"
    credentials = Credentials.load(search.job_dir, "broker")
    with broker_in(folder, SlowLender) as lender:
        server, address = open_server("127.0.0.1", credentials, [make_handler("Broker", lender)])
        await server.start()
        write_endpoint(search.job_dir, Endpoint("b0", 1, address))
        await search.model("b0").submit([python_task("mine:Square", x=3)])
        await asyncio.wait_for(lender.lent.wait(), 60)
        search.processes["b1"].send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)  # the signal arrives, and finds b1 waiting for the answer
        lender.may_answer.set()
        await asyncio.to_thread(search.wait_for, lambda: search.processes["b1"].poll() == 0)
        status = lender.status(time.monotonic())
        assert (status.owned, status.processing, status.dropped) == (1, 0, 0), search.logs()
        await server.stop(None)


@in_loop
async def test_a_broker_that_leaves_tasks_behind_is_adopted_without_a_time_out(
    search: Search,
) -> None:
    search.broker("b0")
    search.broker("b1")
    model = search.model("b0")
    await model.submit([python_task("mine:Square", x=3)])
    os.kill(search.processes["b0"].pid, signal.SIGTERM)
    search.wait_for(lambda: search.processes["b0"].poll() == 0)
    search.start("worker", "w1")
    await model.collect(1)
    model.check()


@in_loop
async def test_no_broker_is_adopted_once_the_search_ends(search: Search) -> None:
    search.broker("b0")
    search.broker("b1")
    contract.write_whole(search.job_dir / files.ENDED, "")
    await search.model("b0").submit([python_task("mine:Square", x=3)])
    os.kill(search.processes["b0"].pid, signal.SIGTERM)
    search.wait_for(lambda: search.processes["b0"].poll() == 0)
    await asyncio.sleep(1.0)  # b1 looks three times in a second
    assert "adopts" not in search.logs()
    assert state_of(search, "b0") == LEFT


@pytest.mark.first
def test_the_model_goes_on_at_the_peer(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    search = Search(
        tmp_path / "job",
        space=[files.Parameter("x", "float", 0, 1)],
        task=files.Task("python", "mine:Square", {"sleep_s": 0.05}),
        budget=files.Budget(trials=40),
    )
    trials = search.job_dir / files.TRIALS

    def told() -> list[int]:
        lines = trials.read_bytes().rpartition(b"\n")[0].splitlines() if trials.exists() else []
        events = [json.loads(line) for line in lines]
        return [event["number"] for event in events if event["event"] == "tell"]

    try:
        search.broker("b0")
        search.broker("b1")
        search.start("worker", "w1", "--slots", "2", "--cpus", "2")
        model = search.start("model", "model")
        search.wait_for(lambda: len(told()) >= 10)
        search.kill("b0")
        search.wait_for(lambda: model.poll() == 0)
        assert sorted(told()) == list(range(40))
        assert "adopts the broker b0" in search.logs()
    finally:
        search.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@in_loop
async def test_a_broker_in_a_workers_job_ends_with_its_worker(search: Search, number: int) -> None:
    """The owner would bear silence for an hour."""
    search.bear_silence(3600)
    worker = search.start("worker", "w1", "--broker", "b.w1", "--grace-s", "0.2")
    search.wait_for(lambda: "takes tasks from the broker b.w1" in search.logs())
    (child,) = broker_beside(worker.pid)
    search.broker("b0")
    model = search.model("b0")
    await model.submit([python_task("mine:Square", x=3, sleep_s=60) for _ in range(3)])
    await model.wait_for(lambda status: status.processing)
    if number == signal.SIGTERM:  # a scheduler signals all processes of a job
        os.kill(child, number)
    os.kill(worker.pid, number)
    worker.wait(60)
    search.wait_for(lambda: not Path("/proc", str(child)).exists())
    assert state_of(search, "b.w1") == RETIRED, search.logs()
    assert not list((search.job_dir / files.BROKERS / "b.w1").glob("*.log"))
    await model.wait_for(lambda status: status.owned >= 3)
    assert (await model.status()).dropped == 0
    await model.cancel(model.acknowledged)
    await model.collect(3)


@in_loop
async def test_a_worker_starts_the_broker_beside_it_again(search: Search) -> None:
    """Nobody else is there who could adopt it."""
    worker = search.start("worker", "w1", "--broker", "b.w1", "--grace-s", "0.2")
    for incarnation in (1, 2, 3):
        search.wait_for(
            lambda n=incarnation: (
                (found := read_endpoint(search.job_dir, "b.w1")) and found.incarnation == n
            )
        )
        (child,) = broker_beside(worker.pid)
        if incarnation < 3:
            os.kill(child, signal.SIGKILL)
    model = search.model("b.w1")
    await model.submit([python_task("mine:Square", x=3)])
    await model.collect(1)
    model.check()
    await model.look(0.1)  # it has the result
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(60) == 0
    assert not Path("/proc", str(child)).exists()
    assert state_of(search, "b.w1") == RETIRED, search.logs()


def broker_beside(worker: int) -> list[int]:
    children = Path(f"/proc/{worker}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    return [
        pid
        for pid in pids
        if b"search.broker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]


def start_worker_at(search: Search, broker: str, name: str) -> str:
    """Start a worker that takes tasks from one of two brokers; return its name."""
    for number in range(20):
        search.start("worker", f"{name}.{number}", "--slots", "1")
        log = search.job_dir / f"{name}.{number}.log"
        search.wait_for(lambda log=log: "takes tasks" in log.read_text())
        if f"broker {broker}" in log.read_text():
            return f"{name}.{number}"
        search.processes[f"{name}.{number}"].send_signal(signal.SIGTERM)
        search.processes[f"{name}.{number}"].wait()
    raise AssertionError(f"no worker went to {broker}")


@in_loop
async def test_a_helper_without_workers_gives_back_what_it_borrowed(search: Search) -> None:
    """It renewed its lease for ever, with nobody to run the task."""
    search.start_with_helper()
    model, may_end = search.model("b2"), search.job_dir / "may end"
    await model.submit([patient_task(may_end)])
    search.wait_for(lambda: list((search.job_dir / "search/tasks").glob("*/log")))
    other = start_worker_at(search, "b2", "w2")
    search.kill("w1")
    may_end.touch()
    (result,) = await model.collect(1)
    assert (result.worker, result.error) == (other, "")
    model.check()
