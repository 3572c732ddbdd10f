"""Work goes on after its broker was killed; how soon, `benchmarks.search` measures."""

import asyncio
import time

from event_loops import run_loop
from search_processes import Search, python_task

from dlctl.contract import search as files
from search.hub.children import Child

SILENCE_S = 3600.0
"""A successor that waited for the lease to lapse would take as long."""


def test_work_is_leased_again_without_a_time_out_after_a_broker_was_killed(search: Search) -> None:
    """The hub starts it again, as in a search; nobody waits for a time-out."""
    search.bear_silence(SILENCE_S)
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
        assert any(r.lease_id >> 40 == 2 and r.started_at > killed_at for r in results)
        model.check()

    try:
        run_loop(run())
    finally:
        child.end(5)
