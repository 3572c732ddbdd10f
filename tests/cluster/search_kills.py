"""Kill the parts of a search on either site, and hold it to the undisturbed run."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from test_searches import assert_each_once, told, wait_for_results
from trainings import wait_for_state

from dlctl import contract
from dlctl.contract import search as names
from search.model.log import TrialLog
from search.model.state import Ended, Search
from search.strategies import make_strategy

STRATEGIES = {
    "grid": "name: grid, levels: 14",
    "random": "name: random, seed: 5",
    "deterministic": "name: genetic, seed: 1, population: 5, deterministic: true, window: 8",
}
TRIALS = 120
SEARCH = """\
name: kills
space:
  x: {float: [0, 1]}
  n: {int: [1, 9]}
strategy: {%STRATEGY%}
metric: {name: loss}
budget: {trials: %TRIALS%}
task: {python: "trials:Valley", time: 1m, memory: 256MiB}
workers: {jobs: 4, slots: 1, time: 10m, per_broker: 2}
"""
PROGRAM = """\
import pathlib, time
from search.tasks import BaseTask

class Valley(BaseTask):
    def __init__(self, x, n):
        self.x, self.n = x, n

    def run(self):
        with open(pathlib.Path(__file__).parents[1] / "began", "a") as file:
            print(self.x, self.n, file=file)
        time.sleep(0.3)
        return {"loss": (self.x - 0.3) ** 2 + abs(self.n - 4) / 10}
"""


def processes(module: str, job_dir: Path) -> list[int]:
    """Return a search's processes that run a module; empty: all of its processes, slots, too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):  # a node's processes are seen from here
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        of_it = any(str(job_dir) in word for word in words)
        if of_it and (not module or module in words):
            found.append(int(path.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    """Return a process and those that it has started."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += descendants(int(child))
    return found


class Killed:
    """A search whose parts are killed.

    Args:
        dlctl: The command.
        site: Where it runs.
        wait_until: Waits for a condition.
        strategy: One of STRATEGIES.
        trials: How many it makes.
    """

    def __init__(
        self, dlctl: Any, site: Any, wait_until: Callable[..., Any], strategy: str,
        trials: int = TRIALS,
    ) -> None:  # fmt: skip
        self.dlctl, self.site, self.wait_until, self.trials = dlctl, site, wait_until, trials
        folder = dlctl.cwd / f"kills-{time.monotonic_ns()}"
        folder.mkdir()
        text = SEARCH.replace("%STRATEGY%", STRATEGIES[strategy])
        (folder / "search.yml").write_text(text.replace("%TRIALS%", str(trials)))
        (folder / "trials.py").write_text(PROGRAM)
        done = dlctl("search", "start", folder / "search.yml", "--site", site.name, ok=True)
        self.id = done.stdout.strip()
        self.job_dir: Path = site.job_dir(self.id)
        self.kills: list[str] = []

    def wait_for_more(self, count: int = 6) -> None:
        """Wait until so many further trials have ended."""
        wanted = min(self.trials, len(told(self.job_dir)) + count)
        wait_for_results(self.wait_until, self.job_dir, wanted)

    def is_over(self) -> bool:
        """Return whether all trials have ended."""
        return len(told(self.job_dir)) >= self.trials

    def kill(self, module: str) -> None:
        """Kill one of the processes that run a module."""
        found = self.wait_until(lambda: processes(module, self.job_dir), 30, what=module)
        self.kills.append(module)
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(found), signal.SIGKILL)

    def kill_everything(self) -> None:
        """Kill all processes of the search, and go on with it as a person does.

        The hub's next attempt begins by itself, and brings workers.
        """
        self.kills.append("everything")
        found = {each for pid in processes("", self.job_dir) for each in descendants(pid)}
        for number in (signal.SIGSTOP, signal.SIGKILL):  # nothing is to react meanwhile
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.wait_until(lambda: self.state() and processes("search.hub", self.job_dir), 90)

    def kill_hub(self) -> None:
        """Kill the hub; the fourth time it is resumed by hand, as it has used its retries."""
        self.kill("search.hub")
        if self.kills.count("search.hub") % 4 == 0:
            self.wait_until(lambda: self.state() == "FAILED", 90)
            self.dlctl("search", "resume", self.id, ok=True)
            self.kills.append("resume")

    def state(self) -> str:
        """Return what `dlctl search status` says."""
        return str(self.dlctl("search", "status", self.id, "--json", ok=True).json["state"])

    def begun_twice(self) -> list[str]:
        """Return the points of trials that began more than once."""
        points = (self.job_dir / "began").read_text().splitlines()
        return [point for point, count in collections.Counter(points).items() if count > 1]

    @contextlib.contextmanager
    def cut_off_a_worker(self) -> Iterator[int]:
        """Stop all processes of a worker's job, and heal it: its late results must be dropped."""
        self.kills.append("a node cut off")
        (pid, *_) = processes("search.worker", self.job_dir)
        stopped = descendants(pid)
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        try:
            yield pid
        finally:
            for each in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGCONT)

    def check(self) -> None:
        """Wait for the end; compare the trials with those of the undisturbed run."""
        wait_for_state(self.dlctl, self.wait_until, self.id, "COMPLETED")
        assert_each_once(self.job_dir, self.trials)
        made = {event["number"]: event["metric"] for event in told(self.job_dir)}
        assert made == self._undisturbed()

    def _undisturbed(self) -> dict[int, float]:
        """Return what the same search finds when nothing happens to it: trial → loss."""
        spec = contract.read_record(names.Spec, self.job_dir / names.SPEC)
        assert spec is not None
        calm = Search(spec, make_strategy(spec), TrialLog(self.dlctl.cwd / f"{self.id}.jsonl"))
        found = {}
        while not calm.is_done():
            if wanted := calm.wanted(spec.window or 8):
                calm.ask(wanted)
                continue
            number, task_id = min(calm.outstanding.items())
            point = calm.trials[number].point
            found[number] = (point["x"] - 0.3) ** 2 + abs(point["n"] - 4) / 10
            calm.end(task_id, Ended("SUCCEEDED", {"loss": found[number]}))
        return found
