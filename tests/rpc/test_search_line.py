"""One broker and its workers as real processes: every acknowledged task has exactly one result."""

import json

from event_loops import run_loop
from search_processes import Search, python_task

from search.protocol import messages as m


def test_200_tasks_on_two_workers(search: Search) -> None:
    search.broker()
    for name in ("w1", "w2"):
        search.start("worker", name, "--slots", "2")

    async def run() -> None:
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
        status = await model.status()
        assert (status.owned, status.processing, status.accepted) == (0, 0, 200)

    run_loop(run())
