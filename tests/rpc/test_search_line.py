"""One broker and its workers as real processes: every acknowledged task has exactly one result."""

import json

import pytest
from event_loops import in_loop
from search_processes import Search, python_task

from dlctl import contract
from dlctl.contract import search as files
from search.protocol import messages as m


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
