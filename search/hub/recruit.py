"""Add workers as long as there is work for them: from the hub, where the nodes may submit jobs."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.ground import outside
from dlctl.contract.ground.processes import end_child

LOOK_S = 5.0
REFUSED_S = 60.0
"""After a refusal, or when workers have ended in vain, nothing is submitted for this
long; twice as long after each further time."""
LONGEST_S = 1800.0
IN_VAIN = 2
"""How often all workers may end without a trial before the hub pauses."""
STARTS_S = 20.0
"""The time that a worker's job takes to start on an idle node: shorter work needs no more."""
_TIMEOUT_S = 120.0
_OURS = ("DLCTL_", "OMP_", "PYTHON")
"""Variables of the hub's job that a worker's job sets by itself."""
_BEGUN_ALREADY = 73


@dataclass(frozen=True)
class Work:
    """The work that is left."""

    outstanding: int
    """Trials that were asked for and have not ended."""
    left: int | None
    """Trials that may still end; None: the search's budget does not count them."""
    trial_s: float | None
    """How long a trial took lately; None: none has ended so far."""
    ended: int = 0
    """Trials that have ended."""


def needed(work: Work, slots: int, alive: int) -> int:
    """Return how many workers the outstanding trials can use.

    Those that live are enough if they are done before another one could begin.
    """
    most = math.ceil(work.outstanding / slots)
    left = work.outstanding if work.left is None else work.left
    if alive and work.trial_s is not None and left * work.trial_s / (alive * slots) < STARTS_S:
        return min(most, alive)
    return most


def shares(pools: list[names.Pool], need: int) -> dict[str, int]:
    """Return how many workers of each pool are wanted: those of the first pool come first."""
    wanted = {}
    for pool in pools:
        wanted[pool.name] = min(pool.most, need)
        need -= wanted[pool.name]
    return wanted


class Recruiter(threading.Thread):
    """Compares the workers in the queue with those that are wanted, now and then."""

    def __init__(self, job_dir: Path, spec: names.Spec, work: Callable[[], Work]) -> None:
        super().__init__(name="recruiter", daemon=True)
        self._job_dir, self._spec, self._work = job_dir, spec, work
        plan = contract.read_record(contract.Plan, job_dir / contract.PLAN)
        allowed = plan.lifecycle.starters if plan is not None and plan.lifecycle else []
        self._submits = contract.StarterKind.JOB.value in allowed
        self._not_before, self._delay_s = 0.0, REFUSED_S
        self._ended_before: int | None = None
        """How many trials had ended when workers were submitted last."""
        self._in_vain = 0
        self.ended = threading.Event()
        self.report: dict[str, Any] = {}
        """`wanted` and `alive`, by pool; `by`: who adds what is missing; `error`, if one came."""

    def run(self) -> None:
        """Look until `ended` is set."""
        while not self.ended.wait(LOOK_S):
            try:
                self._look()
            except (OSError, contract.ContractError, subprocess.SubprocessError) as error:
                self.report = self.report | {"error": str(error)}

    def _look(self) -> None:
        pools = contract.read_record(names.Pools, self._job_dir / names.POOLS)
        if pools is None:
            return
        groups = {pool.name: self._next_group(pool) for pool in pools.pools}  # before the count
        alive = self._alive() if self._submits else None
        count = 0 if alive is None else sum(alive.values())
        work = self._work()
        wanted = shares(pools.pools, needed(work, self._spec.workers.slots, count))
        report = {"wanted": wanted, "alive": alive, "by": "hub" if self._submits else "client"}
        if alive is None or time.monotonic() < self._not_before:
            self.report |= report
            return
        self.report = report
        if self._ended_before is not None and work.ended > self._ended_before:
            self._in_vain, self._delay_s = 0, REFUSED_S
        elif any(wanted.values()) and not count and self._ended_before is not None:
            self._in_vain += 1
            self._ended_before = None
            if self._in_vain >= IN_VAIN:
                why = "all workers end before a trial does; `dlctl logs` shows what they print"
                self._wait(why)
                return
        for pool in pools.pools:
            if (short := wanted[pool.name] - alive[pool.name]) > 0 and not self.ended.is_set():
                self._submit(pool, groups[pool.name], short)
                self._ended_before = work.ended

    def _alive(self) -> Counter[str]:
        done = self._shell([str(self._job_dir / names.ALIVE)])
        if done.returncode:
            raise OSError(f"the workers in the queue can't be counted: {_last_words(done.stderr)}")
        return Counter(line[0] for line in done.stdout.splitlines() if line[1:2].isdecimal())

    def _next_group(self, pool: names.Pool) -> str:
        """Return the next group's name: a client that submits workers meanwhile takes it."""
        folders = (self._job_dir / names.WORKERS).glob(f"{pool.name}[0-9]*")
        found = [re.fullmatch(rf"{pool.name}([0-9]+)", path.name) for path in folders]
        return f"{pool.name}{1 + max((int(each[1]) for each in found if each), default=0)}"

    def _submit(self, pool: names.Pool, group: str, count: int) -> None:
        done = self._shell([str(self._job_dir / pool.submit_file), group, str(count)])
        if done.returncode == _BEGUN_ALREADY:
            return
        code, _, answer = done.stdout.partition("\n")
        if done.returncode == 0 and code == "0":
            sys.stdout.write(f"{count} workers were submitted as {group}\n")
            return
        self._wait(_last_words(done.stderr or answer))

    def _wait(self, why: str) -> None:
        """Submit nothing for a while: twice as long each time."""
        self.report["error"] = f"no more workers for {self._delay_s:.0f} s: {why}"
        self._not_before = time.monotonic() + self._delay_s
        self._delay_s = min(LONGEST_S, 2 * self._delay_s)

    def _shell(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        ours = [name for name in os.environ if name.startswith(_OURS)]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            child = outside.start(["/bin/sh", *argv], self._job_dir, ours, None, output, errors)
            try:
                child.wait(_TIMEOUT_S)
            finally:
                code = end_child(child)
            output.seek(0)
            errors.seek(0)
            texts = [file.read().decode(errors="replace") for file in (output, errors)]
        return subprocess.CompletedProcess(argv, code, *texts)


def _last_words(text: str) -> str:
    return " ".join(text.split())[-300:] or "it printed nothing"
