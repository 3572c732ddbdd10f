"""Which tasks a worker's death counts for."""

from __future__ import annotations

from event_loops import run_loop
from search_processes import Search, python_task

from dlctl.contract import search as files
from search.broker import stored
from search.journal.epochs import log_path
from search.journal.records import read_records
from search.protocol import messages as m


def deaths_recorded(search: Search) -> dict[str, int]:
    """Return the deaths of each task that came back into a queue of the broker b1."""
    records, _ = read_records(log_path(search.job_dir / files.BROKERS / "b1", 1))
    again = [each.payload for each in records if each.kind == stored.AGAIN]
    return {
        task.id: task.deaths
        for payload in again for task in m.SubmitRequest.FromString(payload).tasks
    }  # fmt: skip


def test_a_death_counts_for_what_the_worker_had_begun_alone(search: Search) -> None:
    search.broker("b1")
    search.start("worker", "w1", "--slots", "1")

    async def run() -> None:
        model = search.model()
        await model.submit([python_task("mine:Square", x=1) for _ in range(50)])
        await model.collect(50)  # short tasks: the worker takes some ahead from now on
        runs, *wait = tasks = [
            python_task("mine:Square", x=1, sleep_s=sleep_s) for sleep_s in (60.0, 0.0, 0.0)
        ]
        await model.submit(tasks)
        await model.wait_for(lambda status: status.processing >= 3)
        search.wait_for((search.job_dir / files.TASKS / runs.id / "log").exists)
        search.kill("w1")
        await model.wait_for(lambda status: not status.processing)
        assert deaths_recorded(search) == {runs.id: 1} | {task.id: 0 for task in wait}

    run_loop(run())
