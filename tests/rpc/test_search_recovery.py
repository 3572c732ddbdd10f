"""How long work stands still when a broker or a worker is killed."""

import asyncio
import time

from event_loops import run_loop
from search_processes import Search, patient_task, python_task

from dlctl.contract import search as files
from search.hub.children import Child

GOAL_S = 2.0
LOADED = 2.0
"""The goal is for a machine with nothing else to do; tests run beside others."""


def test_work_is_leased_again_soon_after_its_broker_was_killed(search: Search) -> None:
    """The hub starts it again, as in a search."""
    child = Child("broker", ["search.broker", str(search.job_dir), "--name", "b1"])
    logs = search.job_dir / files.LOGS
    child.look(logs)
    search.wait_for(lambda: (search.job_dir / files.ENDPOINTS / "b1.json").exists())
    search.start("worker", "w1", "--slots", "2")

    async def run() -> None:
        model = search.model()
        await model.submit([python_task("mine:Square", x=3, sleep_s=0.05) for _ in range(100)])
        await model.collect(10)
        assert child.process is not None
        child.process.kill()
        killed_at = time.time()
        while child.starts < 2:
            child.look(logs)
            await asyncio.sleep(0.1)
        results = await model.collect(100)
        again = [
            r.started_at for r in results if r.lease_id >> 40 == 2 and r.started_at > killed_at
        ]
        took_s = min(again) - killed_at
        print(f"broker killed, its work leased again after {took_s:.2f} s")
        assert took_s < GOAL_S * LOADED
        model.check()

    try:
        run_loop(run())
    finally:
        child.end(5)


def test_the_task_of_a_killed_worker_soon_runs_elsewhere(search: Search) -> None:
    search.broker()
    search.start("worker", "victim")

    async def run() -> None:
        model, may_end = search.model(), search.job_dir / "may end"
        await model.submit([patient_task(may_end)])
        search.wait_for(lambda: list((search.job_dir / files.TASKS).glob("*/log")))
        search.start("worker", "rescuer")
        search.wait_for(lambda: "takes" in (search.job_dir / "rescuer.log").read_text())
        search.kill("victim")
        killed_at = time.time()
        may_end.touch()
        (result,) = await model.collect(1)
        assert result.worker == "rescuer"
        took_s = result.started_at - killed_at
        print(f"worker killed, its task runs again after {took_s:.2f} s")
        assert took_s < GOAL_S * LOADED
        model.check()

    run_loop(run())
