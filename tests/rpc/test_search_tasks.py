"""Tasks go wrong in every way: the task ends, the worker and its other tasks go on."""

import json
import os
import signal
from pathlib import Path

import msgpack
import pytest
from event_loops import in_loop
from search_processes import Search, exec_task, python_task

from dlctl import contract
from dlctl.contract import search as files
from search.protocol import messages as m

BAD = {
    "raises": (m.FAILED, "ValueError: no such layer"),
    "raises_bytes": (m.FAILED, r"OSError: can't read photo-\udcff"),
    "reports_a_step_below_0": (m.FAILED, "ValueError: the step -1 is not from 0 to 2^63 - 1"),
    "leaves": (m.FAILED, "ended with exit code 0 before it returned a value"),
    "exits": (m.FAILED, "SystemExit: 3"),
    "crashes": (m.FAILED, "killed by SIGSEGV"),
    "is_killed": (m.FAILED, "killed by SIGKILL"),
    "never_ends": (m.TIMED_OUT, "ran longer than its limit, 0.5 s"),
    "sleeps_deaf": (m.TIMED_OUT, "ran longer than its limit, 0.5 s"),
    "prints_a_gigabyte": (m.FAILED, "printed more than 67108864 bytes"),
    "returns_33_megabytes": (m.FAILED, "has 33554434 bytes; at most 33554432"),
    "eats_memory": (m.OUT_OF_MEMORY, "more memory than its limit"),
}


@in_loop
async def test_a_task_in_message_pack_brings_its_value_so(search: Search) -> None:
    search.broker()
    search.start("worker", "w1", "--slots", "1")
    task = python_task("mine:Square")
    task.payload = msgpack.packb({"target": "mine:Square", "arguments": {"x": 3}})
    task.encoding = "msgpack"
    model = search.model()
    await model.submit([task])
    (result,) = await model.collect(1)
    assert (result.outcome, result.encoding) == (m.SUCCEEDED, "msgpack"), result.error
    assert msgpack.unpackb(result.value)["value"] == 9


@pytest.mark.first
@in_loop
async def test_each_bad_task_ends_alone(search: Search) -> None:
    search.broker()
    worker = search.start("worker", "w1", "--slots", "2", "--memory-bytes", str(2 << 30))
    model = search.model()
    tasks = {}
    for how in BAD:
        tasks[how] = python_task("mine:Bad", how=how, time_limit_s=30)
        if BAD[how][0] == m.TIMED_OUT:
            tasks[how].time_limit_s = 0.5
        tasks[f"after {how}"] = python_task("mine:Square", x=3)
    await model.submit(tasks.values())
    results = {r.task_id: r for r in await model.collect(len(tasks), 60)}
    for how, (outcome, error) in BAD.items():
        result = results[tasks[how].id]
        shown = f"{how}: {m.Outcome.Name(result.outcome)} {result.error}"
        assert result.outcome == outcome and error in result.error, shown
        assert results[tasks[f"after {how}"].id].outcome == m.SUCCEEDED
    model.check()
    assert worker.poll() is None
    log = search.job_dir / files.TASKS / tasks["prints_a_gigabyte"].id / "log"
    assert log.stat().st_size <= 64 << 20
    traceback = search.job_dir / files.TASKS / tasks["raises"].id / "log"
    assert "no such layer" in traceback.read_text()


@in_loop
async def test_a_task_that_closes_all_files_ends_at_once(search: Search) -> None:
    """The kernel keeps the connection open while a thread of the slot waits for it."""
    model = search.with_worker()
    bad = python_task("mine:Bad", how="closes_everything", time_limit_s=60)
    await model.submit([bad, python_task("mine:Square", x=3)])
    results = {r.task_id: r.outcome for r in await model.collect(2)}
    assert results.pop(bad.id) == m.FAILED
    assert list(results.values()) == [m.SUCCEEDED]


@pytest.mark.first
@in_loop
async def test_what_a_task_leaves_behind_is_ended(search: Search) -> None:
    model = search.with_worker()
    await model.submit([python_task("mine:Bad", how="leaves_a_child")])
    await model.collect(1)
    await model.submit([python_task("mine:Bad", how="leaves_the_folder")])
    await model.submit([python_task("mine:Square", x=1)])
    results = await model.collect(3)
    assert all(r.outcome == m.SUCCEEDED for r in results)
    slots = search.processes["w1"].pid
    children = Path(f"/proc/{slots}/task/{slots}/children").read_text().split()
    assert len(children) == 1


@in_loop
async def test_each_task_has_a_log_of_its_own(search: Search) -> None:
    model = search.with_worker()
    tasks = [python_task("mine:Prints", text=f"task {number}") for number in range(3)]
    await model.submit(tasks)
    await model.collect(3)
    for number, task in enumerate(tasks):
        log = (search.job_dir / files.TASKS / task.id / "log").read_text()
        assert log == f"task {number}\na child prints, too\n"


@in_loop
async def test_a_program_of_any_language_is_a_task(search: Search) -> None:
    model = search.with_worker("--slots", "2")
    tasks = {
        "good": exec_task("""echo working; read x; echo "{\\"got\\": $x}" """, lr=0.1),
        "code": exec_task("echo '{}'; exit 4"),
        "words": exec_task("echo done"),
        "long": exec_task("sleep 60", time_limit_s=1.0),
    }
    await model.submit(tasks.values())
    results = {r.task_id: r for r in await model.collect(4)}
    good = results[tasks["good"].id]
    assert json.loads(good.value) == {"got": {"lr": 0.1}}, good
    log = search.job_dir / files.TASKS / tasks["good"].id / "log"
    assert log.read_text().startswith("working\n")
    assert results[tasks["code"].id].error == "the program ended with exit code 4"
    assert "last line is not JSON: 'done'" in results[tasks["words"].id].error
    assert results[tasks["long"].id].outcome == m.TIMED_OUT


@pytest.mark.first("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
@in_loop
async def test_a_worker_that_must_leave_hands_its_tasks_back(search: Search, number: int) -> None:
    search.broker()
    first = search.start("worker", "w1", "--slots", "1")
    model = search.model()
    tasks = [python_task("mine:Reports", steps=150), python_task("mine:Square", x=3)]
    await model.submit(tasks)
    while not any(report.step > 0 for report in (await model.look(1.0)).reports):
        pass
    os.kill(first.pid, number)
    search.wait_for(lambda: first.poll() == 0)
    log = (search.job_dir / "w1.log").read_text()
    assert "broker b1: knows that this worker leaves" in log, "its end is no death"
    search.start("worker", "w2", "--slots", "1")
    results = {r.task_id: r for r in await model.collect(2)}
    value = json.loads(results[tasks[0].id].value)
    assert value["value"] == 149 and value["began"] > 0
    assert results[tasks[0].id].worker == "w2"
    model.check()


@in_loop
async def test_reports_reach_the_model_and_a_cancelled_task_stops(search: Search) -> None:
    model = search.with_worker("--slots", "1")
    runs, waits = python_task("mine:Reports", steps=5000), python_task("mine:Square", x=3)
    await model.submit([runs, waits])
    seen: dict[str, float] = {}
    while not seen:
        for report in (await model.look(1.0)).reports:
            assert report.task_id == runs.id
            seen = dict(report.metrics)
    assert 0 < seen["loss"] <= 1
    await model.cancel([runs.id, waits.id])
    results = {r.task_id: r for r in await model.collect(2)}
    assert results[waits.id].outcome == m.CANCELLED
    assert results[runs.id].outcome == m.SUCCEEDED  # it ended by itself when it was told
    assert json.loads(results[runs.id].value)["value"] < 5000
    model.check()


def test_an_idle_worker_leaves(search: Search) -> None:
    search.broker()
    worker = search.start("worker", "w1", "--idle-s", "0.5")
    search.wait_for(lambda: worker.poll() == 0)
    assert not list((search.job_dir / files.OUTBOXES).iterdir())


@in_loop
async def test_the_gpus_of_a_worker_are_divided_among_its_tasks(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,2,GPU-c")
    model = search.with_worker("--slots", "4", "--gpus", "3")
    tasks = [python_task("mine:Sees", sleep_s=0.1) for _ in range(12)]
    for number, task in enumerate(tasks):
        task.needs.gpus = number % 3
    await model.submit(tasks)
    results = {r.task_id: json.loads(r.value) for r in await model.collect(12)}
    assert [len(results[task.id]["gpus"]) for task in tasks] == [0, 1, 2] * 4
    events = sorted(
        (at, begins, gpu)
        for value in results.values()
        for at, begins in zip(value["ran"], (1, 0), strict=True)
        for gpu in value["gpus"]
    )
    used: set[str] = set()
    for _, begins, gpu in events:
        assert (gpu in used) != bool(begins), "two tasks had it at once"
        used ^= {gpu}
    assert {gpu for _, _, gpu in events} == {"GPU-a", "2", "GPU-c"}


@pytest.mark.first
@in_loop
async def test_200_tasks_on_two_workers(search: Search) -> None:
    search.broker()
    for name in ("w1", "w2"):
        search.start("worker", name, "--slots", "2")
    model = search.model()
    tasks = [python_task("mine:Square", x=number) for number in range(200)]
    await model.submit(tasks)
    results = {r.task_id: r for r in await model.collect(200)}
    for number, task in enumerate(tasks):
        result = results[task.id]
        assert result.outcome == m.SUCCEEDED, result
        assert json.loads(result.value)["value"] == number**2
    model.check()
    assert {r.worker for r in model.results} == {"w1", "w2"}
    pids = {json.loads(r.value)["pid"] for r in model.results}
    assert len(pids) <= 4, "a slot stays warm"
    assert not list((search.job_dir / files.TASKS).iterdir()), "they left nothing"
    status = await model.status()
    assert (status.owned, status.processing, status.accepted) == (0, 0, 200)


@in_loop
async def test_a_broker_tells_its_queues_and_workers_in_a_file(search: Search) -> None:
    search.broker()
    search.start(
        "worker", "w1", "--slots", "1", "--cpus", "2", "--label", "fast", "--grace-s", "0.2"
    )
    path = search.job_dir / files.BROKERS / "b1" / files.BROKER_STATUS

    def told() -> files.BrokerStatus | None:
        return contract.read_record(files.BrokerStatus, path)

    await search.model().submit(
        [python_task("mine:Square", x=1, sleep_s=30.0), python_task("mine:Square", x=2)]
    )
    search.wait_for(lambda: (now := told()) and now.workers and now.workers[0].running)
    now = told()
    assert now is not None
    (worker,) = now.workers
    assert (now.owned + now.processing, worker.name, worker.running >= 1) == (2, "w1", True)
    assert (worker.cpus, worker.labels) == (2, ["fast"]) and worker.memory_bytes > 0
    later = now.time
    search.wait_for(lambda: (now := told()) and now.time > later)
