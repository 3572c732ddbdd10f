"""A broker that helps another one loses its workers: what it borrowed goes back to its owner."""

import signal

from event_loops import in_loop
from search_processes import Search, patient_task


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
