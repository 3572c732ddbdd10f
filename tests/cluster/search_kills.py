"""Kill the parts of a search on either site, and hold it to the undisturbed run."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from test_searches import assert_each_once, events, told, wait_for_results
from trainings import wait_for_state
from waiting import wait_until

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
FIRST_NODE = 10
"""Node 1 has the address 10.77.0.11."""
COUNTED = ("accepted", "failed", "dropped", "lent")
ENDS = re.compile(
    r"(\S+): incarnation (\d+) ends; so far (\d+) results accepted, (\d+) of them failed, "
    r"(\d+) dropped, (\d+) tasks lent(; it leaves nothing behind)?"
)
SEARCH = """\
name: kills
space:
  x: {float: [0, 1]}
  n: {int: [1, 9]}
strategy: {%STRATEGY%}
metric: {name: loss}
budget: {trials: %TRIALS%}
task: {python: "trials:Valley", time: 1m, memory: 256MiB}
workers: {jobs: 4, slots: 1, time: 10m, per_broker: %PER_BROKER%}
"""
PROGRAM = """\
import pathlib, time
from search.tasks import BaseTask

class Valley(BaseTask):
    def __init__(self, x, n):
        self.x, self.n = x, n

    def run(self):
        with open(pathlib.Path(__file__).parents[1] / "began", "a") as file:
            print(self.checkpoint.parent.name, file=file)
        time.sleep(0.3)
        return {"loss": (self.x - 0.3) ** 2 + abs(self.n - 4) / 10}
"""


def processes(module: str, job_dir: Path, *with_words: str) -> list[int]:
    """Return a search's processes that run a module; empty: all of its processes, slots, too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):  # a node's processes are seen from here
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        of_it = any(str(job_dir) in word for word in words)
        if of_it and {module, *with_words} - {""} <= set(words):
            found.append(int(path.parent.name))
    return found


def descendants(pid: int) -> list[int]:
    """Return a process and those that it has started."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += descendants(int(child))
    return found


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stop processes for a while."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Killed:
    """A search whose parts are killed.

    Args:
        dlctl: The command.
        site: Where it runs.
        wait_until: Waits for a condition.
        strategy: One of STRATEGIES.
        trials: How many it makes.
        per_broker: One in so many of its four workers brings a broker along.
    """

    def __init__(
        self, dlctl: Any, site: Any, strategy: str,
        trials: int = TRIALS, per_broker: int = 2,
    ) -> None:  # fmt: skip
        self.dlctl, self.site, self.trials = dlctl, site, trials
        folder = dlctl.cwd / f"kills-{time.monotonic_ns()}"
        folder.mkdir()
        text = SEARCH.replace("%STRATEGY%", STRATEGIES[strategy])
        text = text.replace("%TRIALS%", str(trials)).replace("%PER_BROKER%", str(per_broker))
        (folder / "search.yml").write_text(text)
        (folder / "trials.py").write_text(PROGRAM)
        done = dlctl("search", "start", folder / "search.yml", "--site", site.name, ok=True)
        self.id = done.stdout.strip()
        self.job_dir: Path = site.job_dir(self.id)
        self.kills: list[str] = []
        self._settled: list[tuple[int, set[str]]] = []
        """How many runs had begun when everything was killed, and which trials had ended."""

    def wait_for_more(self, count: int = 6) -> None:
        """Wait until so many further trials have ended."""
        wanted = min(self.trials, len(told(self.job_dir)) + count)
        wait_for_results(self.job_dir, wanted)

    def is_over(self) -> bool:
        """Return whether all trials have ended."""
        return len(told(self.job_dir)) >= self.trials

    def kill(self, module: str, *words: str) -> None:
        """Kill one of the processes that run a module, with these words in the command line."""
        found = wait_until(
            lambda: processes(module, self.job_dir, *words), 60, what=f"{module} {words}"
        )
        self.kills.append(" ".join((module, *words)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(found), signal.SIGKILL)

    def kill_everything(self) -> None:
        """Kill all processes of the search; the hub's next attempt begins by itself."""
        self._kill_all_processes()
        wait_until(lambda: self.state() and processes("search.hub", self.job_dir), 90)

    def kill_everything_for_good(self) -> None:
        """Kill all processes and cancel all jobs of the search; go on with it as a person does."""
        self.site.cluster.cancel_all()  # nothing that dies now is started again
        self._kill_all_processes()
        wait_until(lambda: not processes("", self.job_dir), 60, what="all processes to end")
        wait_until(lambda: self.state() in ("FAILED", "CANCELLED", "HALTED"), 90)
        self._settled.append((len(self.begun()), self._told_ids()))
        self.dlctl("resume", self.id, ok=True)
        self.kills.append("resume")

    def _kill_all_processes(self) -> None:
        self.kills.append("everything")
        found = {each for pid in processes("", self.job_dir) for each in descendants(pid)}
        for number in (signal.SIGSTOP, signal.SIGKILL):  # nothing is to react meanwhile
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill_hub(self) -> None:
        """Kill the hub; the fourth time it is resumed by hand, as it has used its retries."""
        self.kill("search.hub")
        if self.kills.count("search.hub") % 4 == 0:
            wait_until(lambda: self.state() == "FAILED", 90)
            self.dlctl("resume", self.id, ok=True)
            self.kills.append("resume")

    def state(self) -> str:
        """Return what `dlctl status` says."""
        return str(self.dlctl("status", self.id, "--json", ok=True).json["state"])

    def begun(self) -> list[str]:
        """Return the trial of each run that has begun."""
        return (self.job_dir / "began").read_text().splitlines()

    def begun_twice(self) -> list[str]:
        """Return the trials that began more than once."""
        return [each for each, count in collections.Counter(self.begun()).items() if count > 1]

    def _told_ids(self) -> set[str]:
        made = [event for event in events(self.job_dir) if event["event"] == "ask"]
        ids = {trial["number"]: trial["id"] for event in made for trial in event["trials"]}
        return {ids[event["number"]] for event in told(self.job_dir)}

    def _printed(self) -> str:
        """Return what brokers have printed, each line behind a newline."""
        logs = [self.job_dir / names.LOGS / "broker.log"]
        logs += sorted((self.job_dir / names.WORKERS).glob("*/*.out"))
        return "".join("\n" + path.read_text() for path in logs if path.exists())

    def counted(self) -> dict[str, collections.Counter[str]]:
        """Return what each broker has counted in all, as its incarnations say when they end.

        One that leaves nothing behind is the last that counts on: the next one begins at 0.
        """
        wait_until(lambda: not processes("", self.job_dir), 60, what="workers to leave")
        said = [found.groups() for found in map(ENDS.match, self._printed().splitlines()) if found]
        whole: dict[str, collections.Counter[str]] = {}
        newest: dict[str, collections.Counter[str]] = {}
        for broker, _, *counts, left_nothing in sorted(said, key=lambda row: int(row[1])):
            newest[broker] = collections.Counter(dict(zip(COUNTED, map(int, counts), strict=True)))
            if left_nothing:
                whole[broker] = whole.get(broker, collections.Counter()) + newest.pop(broker)
        return {
            broker: whole.get(broker, collections.Counter())
            + newest.get(broker, collections.Counter())
            for broker in whole | newest
        }

    @contextlib.contextmanager
    def stop_a_worker(self) -> Iterator[int]:
        """Stop all processes of a worker without a broker for a while, as a node that hangs."""
        self.kills.append("a worker stopped")
        workers = set(processes("search.worker", self.job_dir))
        pid = min(workers - set(processes("search.worker", self.job_dir, "--broker")))
        with stopped(descendants(pid)):
            yield pid

    def place(self, broker: str) -> int:
        """Return the number of the node on which a broker listens."""
        told = json.loads((self.job_dir / names.ENDPOINTS / f"{broker}.json").read_text())
        return int(told["address"].partition(":")[0].rpartition(".")[2]) - FIRST_NODE

    def check(self) -> None:
        """Wait for the end; compare the trials with those of the undisturbed run."""
        wait_for_state(self.dlctl, self.id, "COMPLETED")
        assert_each_once(self.job_dir, self.trials)
        made = {event["number"]: event["metric"] for event in told(self.job_dir)}
        assert made == self._undisturbed()
        for begun, ended in self._settled:
            again = ended.intersection(self.begun()[begun:])
            assert not again, (
                f"trials had ended before everything was killed, and ran again: {again}"
            )

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
