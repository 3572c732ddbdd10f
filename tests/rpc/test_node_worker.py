"""The worker in Node.js (examples/worker-node) and ours in one search."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from event_loops import in_loop
from search_processes import ROOT, Search, exec_task, python_task

from dlctl.contract import search as files
from search.protocol import messages as m

EXAMPLE = ROOT / "examples/worker-node"
PACKAGES = Path(sys.prefix, "worker-node/node_modules")
MISSING = (
    "there is no Node.js" if shutil.which("node") is None
    else "its packages are not installed: .ci/make-worker-node .venv/worker-node"
    if not PACKAGES.is_dir() else ""
)  # fmt: skip
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def node_worker(search: Search, name: str, slots: int = 1) -> subprocess.Popen[bytes]:
    argv = ["node", str(EXAMPLE / "worker.js"), str(search.job_dir), "--name", name,
            "--slots", str(slots), "--modules", str(EXAMPLE / "tasks")]  # fmt: skip
    with (search.job_dir / f"{name}.log").open("ab") as log:
        started = subprocess.Popen(
            argv, stdout=log, stderr=log, env=os.environ | {"NODE_PATH": str(PACKAGES)}
        )
    return search.add(name, started)


def node_task(module: str, time_limit_s: float = 30.0, **arguments: object) -> m.Task:
    task = python_task("", time_limit_s)
    task.type = "node"
    task.payload = json.dumps({"target": module, "arguments": arguments}).encode()
    return task


@in_loop
async def test_workers_of_two_languages_share_a_search(search: Search) -> None:
    search.nameserver()
    search.broker()
    node_worker(search, "node", slots=2)
    search.start("worker", "python", "--slots", "2")
    model = search.model()
    ours = [python_task("mine:Square", x=n) for n in range(20)]
    its = [node_task("valley", x=n / 20) for n in range(20)]
    both = [exec_task("read x; sleep 0.1; echo $x", n=n) for n in range(40)]
    bad = [
        node_task("nowhere"), node_task("valley", x=1, steps=10000, time_limit_s=0.5),
        exec_task("echo no JSON; sleep 0.1"),
    ]  # fmt: skip
    await model.submit([*ours, *its])
    await model.collect(40)
    await model.submit([*both, *bad])  # both workers are there now
    results = {r.task_id: r for r in await model.collect(83)}
    for n, task in enumerate(ours):
        assert results[task.id].worker == "python"
        assert json.loads(results[task.id].value)["value"] == n**2
    for n, task in enumerate(its):
        assert results[task.id].worker == "node", results[task.id]
        assert json.loads(results[task.id].value)["loss"] == pytest.approx((n / 20 - 0.3) ** 2)
    for n, task in enumerate(both):
        assert json.loads(results[task.id].value) == {"n": n}, results[task.id]
    assert {results[task.id].worker for task in both} == {"node", "python"}
    errors = [results[task.id].error for task in bad]
    assert "Cannot find module" in errors[0]
    assert results[bad[1].id].outcome == m.TIMED_OUT
    assert "the program's last line is not JSON: " in errors[2]
    model.check()


@in_loop
async def test_a_node_worker_hands_its_task_back_and_the_next_one_goes_on(search: Search) -> None:
    search.broker()
    first = node_worker(search, "first")
    model = search.model()
    task = node_task("valley", x=0.5, steps=150)
    await model.submit([task])
    while not any(report.step > 0 for report in (await model.look(1.0)).reports):
        assert not model.results, model.results
    first.send_signal(signal.SIGTERM)
    search.wait_for(lambda: first.poll() == 0)
    node_worker(search, "second")
    (result,) = await model.collect(1)
    assert (result.worker, result.outcome) == ("second", m.SUCCEEDED)
    assert json.loads(result.value)["began"] > 0
    model.check()
    assert not (search.job_dir / files.OUTBOXES / "first.jsonl").exists()


@in_loop
async def test_a_killed_node_worker_brings_its_result_when_it_is_started_again(
    search: Search,
) -> None:
    search.broker()
    node_worker(search, "node")
    model = search.model()
    await model.submit([node_task("valley", x=0.5, steps=25)])
    search.wait_for(lambda: list((search.job_dir / files.TASKS).glob("*/log")))
    search.kill("b1")
    outbox = search.job_dir / files.OUTBOXES / "node.jsonl"
    search.wait_for(lambda: outbox.stat().st_size > 0)
    search.kill("node")
    node_worker(search, "node")
    search.broker()
    (result,) = await model.collect(1)
    assert result.outcome == m.SUCCEEDED
    model.check()
