"""Processes of a search are killed: every acknowledged task still has exactly one result."""

import asyncio
import itertools
import json
import os
import random
import resource
import signal
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest
from event_loops import in_loop, run_loop
from search_processes import Search, patient_task, python_task

from dlctl.contract import search as files
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import Endpoint, read_nameserver, write_endpoint
from search.protocol.stubs import BrokerStub

SLOW = {"x": 2, "sleep_s": 0.05}


@pytest.mark.first
@in_loop
async def test_the_task_of_a_killed_worker_runs_again_without_a_time_out(search: Search) -> None:
    """The broken connection tells the broker, which would bear silence for an hour."""
    search.bear_silence(3600)
    model, may_end = search.with_worker("--slots", "1"), search.job_dir / "may end"
    await model.submit([patient_task(may_end)])
    folder = search.job_dir / files.TASKS
    search.wait_for(lambda: list(folder.glob("*/log")))
    search.start("worker", "w2", "--slots", "1")
    search.wait_for(lambda: "takes tasks" in (search.job_dir / "w2.log").read_text())
    search.kill("w1")
    may_end.touch()
    (result,) = await model.collect(1)
    assert result.worker == "w2"
    model.check()


@pytest.mark.first
@in_loop
async def test_a_killed_worker_leaves_no_process(search: Search) -> None:
    model = search.with_worker("--slots", "1")
    await model.submit([python_task("mine:Bad", how="sleeps_deaf")])
    log = search.job_dir / files.TASKS
    search.wait_for(lambda: list(log.glob("*/log")))
    children = Path(f"/proc/{search.processes['w1'].pid}/task").glob("*/children")
    pids = [pid for path in children for pid in path.read_text().split()]
    assert pids
    search.kill("w1")
    search.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.first
@in_loop
async def test_the_broker_is_killed_and_its_successor_adopts_the_log(search: Search) -> None:
    """Nobody waits for a time-out: a successor would bear silence for an hour."""
    search.bear_silence(3600)
    model = search.with_worker("--slots", "2")
    await model.submit([python_task("mine:Square", **SLOW) for _ in range(60)])
    for at in (10, 25, 40):
        await model.collect(at)
        search.kill("b1")
        search.broker()
    await model.collect(60)
    model.check()
    assert all(r.outcome == m.SUCCEEDED for r in model.results)
    assert all(not r.error for r in model.results)


@pytest.mark.first
@in_loop
async def test_results_that_no_model_has_taken_survive_the_broker(search: Search) -> None:
    model = search.with_worker("--slots", "2")
    await model.submit([python_task("mine:Square", x=3) for _ in range(5)])
    await model.wait_for(lambda status: status.accepted >= 5)
    search.kill("w1")
    search.kill("b1")
    search.broker()
    assert len(await model.collect(5)) == 5
    model.check()


@pytest.mark.first
@in_loop
async def test_a_torn_tail_is_left_out(search: Search) -> None:
    search.broker()
    model = search.model()
    await model.submit([python_task("mine:Square", x=3) for _ in range(7)])
    search.kill("b1")
    (log,) = (search.job_dir / files.BROKERS / "b1").glob("*.log")
    with log.open("ab") as file:
        file.write(b"\x10\x00\x00\x00torn")
    search.broker()
    assert (await model.status()).owned == 7
    assert "8 bytes of a torn tail" in search.logs()
    search.start("worker", "w1")
    await model.collect(7)
    model.check()


def test_a_log_stays_short_and_a_kill_at_any_moment_loses_nothing(search: Search) -> None:
    most_bytes = 20_000
    short = ("--segment-bytes", str(most_bytes))
    search.broker("b1", *short)
    search.start("worker", "w1", "--slots", "2", "--echo")
    folder = search.job_dir / files.BROKERS / "b1"
    seen: set[str] = set()

    async def wait_until_short() -> None:
        end = time.monotonic() + 60
        while (sizes := [path.stat().st_size for path in folder.glob("*.log")]) and (
            len(sizes) > 1 or sizes[0] > 3 * most_bytes
        ):
            assert time.monotonic() < end, sizes
            await asyncio.sleep(0.02)

    async def run() -> None:
        model = search.model()
        for batch in range(1, 13):
            await model.submit([python_task("mine:Square", x=3, pad="x" * 100) for _ in range(50)])
            await model.collect(50 * batch)
            await wait_until_short()
            seen.update(path.name for path in folder.glob("*.log"))
            if batch in (4, 8):
                search.kill("b1")
                search.broker("b1", *short)
        model.check()

    run_loop(run())
    assert any(not name.endswith(".0.log") for name in seen), "it began no segments"


@pytest.mark.first
@in_loop
async def test_a_second_broker_of_the_same_name_ends_the_first(search: Search) -> None:
    search.broker()
    first = search.processes["b1"]
    model = search.model()
    await model.submit([python_task("mine:Square", x=3) for _ in range(7)])
    search.broker()  # while the first lives
    search.wait_for(lambda: first.poll() is not None)
    assert first.returncode == 1
    assert (await model.status()).owned == 7


@pytest.mark.first
@in_loop
async def test_a_broker_that_was_stopped_acknowledges_nothing_after_its_successor_began(
    search: Search,
) -> None:
    search.broker()
    first, address = search.processes["b1"], search.address()
    os.kill(first.pid, signal.SIGSTOP)
    search.broker()  # waits until the lease of the first has lapsed
    os.kill(first.pid, signal.SIGCONT)
    async with open_channel(address, Credentials.load(search.job_dir, "model")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            task = python_task("mine:Square", x=3)
            await BrokerStub(channel).Submit(
                m.SubmitRequest(model="model", tasks=[task]), timeout=60
            )
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (await search.model().status()).owned == 0


def test_the_nameserver_is_killed_under_load_and_is_whole_after_a_heartbeat(search: Search) -> None:
    search.nameserver()
    search.broker()
    search.start("worker", "w1", "--slots", "2")

    async def known() -> bool:
        where = read_nameserver(search.job_dir)
        assert where is not None
        async with open_channel(
            where.address, Credentials.load(search.job_dir, "client")
        ) as channel:
            from search.protocol.stubs import NameserverStub

            reply = await NameserverStub(channel).Lookup(m.LookupRequest(), timeout=60)
            return reply.broker == "b1" and reply.address == search.address()

    async def run() -> None:
        model = search.model()
        await model.submit([python_task("mine:Square", **SLOW) for _ in range(40)])
        await model.collect(5)
        search.kill("nameserver")
        search.start("worker", "w2", "--slots", "2")  # finds the broker by its file
        while "w2" not in {r.worker for r in model.results}:
            await model.submit([python_task("mine:Square", **SLOW) for _ in range(10)])
            await model.collect(len(model.results) + 10)
        search.nameserver()
        end = time.monotonic() + 60
        while not await known():
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        await model.collect(len(model.acknowledged))
        model.check()

    run_loop(run())


@pytest.mark.first
@in_loop
async def test_workers_of_an_idle_broker_help_another_one(search: Search) -> None:
    search.nameserver()
    search.broker("b1")
    search.broker("b2")
    endpoint = search.job_dir / files.ENDPOINTS / "b1.json"
    hidden = endpoint.read_bytes()
    search.wait_for(lambda: (search.job_dir / "b2.log").exists())
    endpoint.unlink()
    search.kill("nameserver")  # so that the worker finds b2 alone
    search.start("worker", "w2", "--slots", "4")
    search.wait_for(lambda: "takes tasks from the broker b2" in search.logs())
    endpoint.write_bytes(hidden)
    model = search.model("b1")
    await model.submit([python_task("mine:Square", x=number) for number in range(200)])
    await model.collect(200)
    model.check()
    assert {r.worker for r in model.results} == {"w2"}
    assert (await model.status()).lent >= 200
    values = sorted(json.loads(r.value)["value"] for r in model.results)
    assert values == [number**2 for number in range(200)]


@pytest.mark.first
@in_loop
async def test_a_repeated_submission_adds_nothing(search: Search) -> None:
    model = search.with_worker("--slots", "2")
    tasks = [python_task("mine:Square", x=number) for number in range(10)]
    await model.submit(tasks)
    await model.submit(tasks)
    await model.wait_for(lambda status: status.accepted >= 10)
    reply = await model.submit(tasks)
    assert list(reply.accepted) == [task.id for task in tasks]
    await model.collect(10)
    await model.look(0.5)
    model.check()


@in_loop
async def test_the_broker_is_away_while_a_worker_finishes(search: Search) -> None:
    """The result waits in the outbox, on disk; nobody runs the task again."""
    model, may_end = search.with_worker("--slots", "1"), search.job_dir / "may end"
    await model.submit([patient_task(may_end)])
    search.wait_for(lambda: list((search.job_dir / files.TASKS).glob("*/log")))
    search.kill("b1")
    may_end.touch()
    outbox = search.job_dir / files.OUTBOXES / "w1.log"
    search.wait_for(lambda: outbox.stat().st_size > 0)
    search.broker()
    (result,) = await model.collect(1)
    assert json.loads(result.value) == 9
    status = await model.status()
    assert (status.accepted, status.dropped, status.processing) == (1, 0, 0)
    model.check()


@pytest.mark.first
@in_loop
async def test_who_is_no_model_can_not_send_tasks(search: Search) -> None:
    search.broker()
    for role in ("worker", "client", "nameserver"):
        credentials = Credentials.load(search.job_dir, role)
        async with open_channel(search.address(), credentials) as channel:
            stub = BrokerStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Submit(m.SubmitRequest(model="x", tasks=[]), timeout=60)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert (await stub.Status(m.StatusRequest(), timeout=60)).broker == "b1"


@pytest.mark.first
@in_loop
async def test_the_late_results_of_a_worker_that_was_cut_off_are_dropped(search: Search) -> None:
    search.broker()
    first = search.start("worker", "w1", "--slots", "2")
    model, may_end = search.model(), search.job_dir / "may end"
    await model.submit([patient_task(may_end) for _ in range(2)])
    await model.wait_for(lambda status: status.processing >= 2)
    os.kill(first.pid, signal.SIGSTOP)  # its connections stay open, and say nothing
    may_end.touch()
    search.start("worker", "w2", "--slots", "2")
    results = await model.collect(2)
    assert {r.worker for r in results} == {"w2"}
    os.kill(first.pid, signal.SIGCONT)
    await model.wait_for(lambda status: status.dropped >= 2)
    await model.look(0.3)
    model.check()


@in_loop
async def test_a_run_that_was_cut_off_and_goes_on_writes_into_no_other_runs_folder(
    search: Search,
) -> None:
    search.bear_silence(5)
    search.broker()
    first = search.start("worker", "w1")
    model, may_end = search.model(), search.job_dir / "may end"
    task = python_task("mine:Guards", time_limit_s=120, may_end=str(may_end))
    (task_id,) = (await model.submit([task])).accepted
    folder = search.job_dir / files.TASKS / task_id
    search.wait_for((folder / "run-1" / "mine").exists)
    os.kill(first.pid, signal.SIGSTOP)  # its task runs on
    search.start("worker", "w2")
    search.wait_for((folder / "run-2" / "mine").exists)
    cut_off = (folder / "run-1" / "mine").stat()
    search.wait_for(lambda: (folder / "run-1" / "mine").stat().st_mtime > cut_off.st_mtime)
    os.kill(first.pid, signal.SIGCONT)
    may_end.touch()
    (result,) = await model.collect(1)
    value = json.loads(result.value)
    assert result.worker == "w2" and not value["clash"]
    assert value["found"] == (folder / "run-1" / "mine").read_text()
    assert (folder / "checkpoint" / "mine").read_text() == str(value["pid"])
    model.check()


@in_loop
async def test_a_helper_that_is_lost_gives_its_tasks_back_without_a_time_out(
    search: Search,
) -> None:
    """The broken connection tells the owner, which would bear silence for an hour."""
    search.bear_silence(3600)
    search.start_with_helper("--grace-s", "0.2")
    model = search.model("b2")
    await model.submit([python_task("mine:Reports", 600.0, steps=30_000)])
    while not (await model.look(1.0)).reports:
        pass  # they come with b1's renewals of the lease, one of which always waits at b2
    search.kill("b1")
    await model.wait_for(lambda status: status.owned)
    search.kill("w1")  # it would wait for b1, to bring its result


@in_loop
async def test_a_brokers_disk_is_full_for_a_while(search: Search) -> None:
    """The kernel refuses to let its files grow, as a quota does."""
    search.broker()
    broker = search.processes["b1"].pid
    lease = search.job_dir / files.BROKERS / "b1" / "1.lease"
    model = search.model()
    await model.submit([python_task("mine:Square", x=3) for _ in range(5)])
    size = search.job_dir / files.BROKERS / "b1" / "1.0.log"
    limits = resource.prlimit(
        broker, resource.RLIMIT_FSIZE, (size.stat().st_size + 5000, resource.RLIM_INFINITY)
    )
    more = [python_task("mine:Square", x=3, pad="x" * 1000) for _ in range(20)]
    credentials = Credentials.load(search.job_dir, "model")
    async with open_channel(search.address(), credentials) as channel:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                request = m.SubmitRequest(model="model", tasks=more)
                await BrokerStub(channel).Submit(request, timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "the disk is full" in str(caught.value.details())
    assert "free some space" in str(caught.value.details())
    resource.prlimit(broker, resource.RLIMIT_FSIZE, limits)
    await model.submit(more)
    search.kill("b1")
    search.broker()
    assert (await model.status()).owned == 25
    search.start("worker", "w1", "--slots", "2")
    await model.collect(25)
    model.check()
    assert not lease.exists()


@in_loop
async def test_a_worker_on_a_sick_node_leaves_and_its_tasks_run_elsewhere(search: Search) -> None:
    search.broker()
    tasks = search.job_dir / files.TASKS
    tasks.write_text("no folder")
    sick = search.start("worker", "sick")
    model = search.model()
    await model.submit([python_task("mine:Square", x=3) for _ in range(5)])
    sick.wait(60)
    assert sick.returncode == 1
    assert "this worker can't run tasks: " in (search.job_dir / "sick.log").read_text()
    tasks.unlink()
    del search.processes["sick"]
    search.start("worker", "well")
    await model.collect(5)
    model.check()
    assert all(r.outcome == m.SUCCEEDED for r in model.results)


@pytest.mark.first
def test_a_worker_of_another_version_ends_with_a_sentence(search: Search) -> None:
    """The broker knows other calls: to the worker the nameserver looks like one."""
    search.nameserver()
    where = read_nameserver(search.job_dir)
    assert where is not None
    write_endpoint(search.job_dir, Endpoint("b9", 1, where.address))
    worker = search.start("worker", "w1", "--grace-s", "0.1")
    worker.wait(60)
    assert worker.returncode == 1
    said = (search.job_dir / "w1.log").read_text()
    assert "worker w1: the broker b9 refuses this worker: /search.v1.Broker/" in said
    assert "use the version of dlctl" in said
    del search.processes["w1"]


def test_a_broker_whose_folder_can_not_be_written_says_so(search: Search) -> None:
    (search.job_dir / files.BROKERS).mkdir(parents=True)
    (search.job_dir / files.BROKERS / "b1").write_text("no folder")
    broker = search.start("broker", "b1")
    assert broker.wait(60) == 1
    said = (search.job_dir / "b1.log").read_text()
    assert said.startswith("broker b1: the broker b1 can't use its folder: ")
    assert "Traceback" not in said
    del search.processes["b1"]


BROKERS = ("b0", "b1", "b2")
ROUNDS = 8
EACH = 25


@in_loop
async def test_each_task_has_one_result_whatever_is_killed(search: Search) -> None:
    """Brokers and workers are killed at random, for a quarter of a minute."""
    chance = random.Random(1)
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
