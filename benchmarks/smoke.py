"""See whether each benchmark works: `python -m benchmarks --smoke [GROUP …]`.

Every group runs with its smallest load, in a process of its own, two at a time: the numbers mean
nothing. A group fails if it ends badly or too late, if a result or a peer is missing that the page
has and that it did not leave out by name, or if it leaves processes, mounts, shared memory
or files in /tmp.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster import one_at_a_time, wipe_leftovers  # type: ignore[import-not-found]
from leftovers import (  # type: ignore[import-not-found]
    SESSION_VARIABLE,
    common_files,
    left_behind,
)

from benchmarks import page
from benchmarks.learners import REPOSITORY

OTHERS = ("psrv_accuracy",)
"""Benchmarks whose tables other pages have; they only have to end well."""
_AT_ONCE = 2
_LIMIT_S = 900.0
"""After this a group hangs, on however busy a machine."""
_GRACE_S, _LEFT_S = 30.0, 10.0
"""How long it may take to end once it was told to; how long its last processes may."""
_LAST_WORDS = 3000


def program(group: str) -> list[str]:
    """Return the command that runs a group."""
    return [sys.executable, "-m", f"benchmarks.{group}", "--smoke"]


class Group:
    """One group while it runs, and what came of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.problems, self.left_out = name, list[str](), list[str]()
        self.took_s = 0.0
        self._began = time.monotonic()
        self._output, self._errors = folder / name, folder / f"{name}.errors"
        self._token = secrets.token_hex(8)
        """All its processes inherit it."""
        self._before = common_files()
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                program(name), cwd=REPOSITORY, env=os.environ | {SESSION_VARIABLE: self._token},
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            )  # fmt: skip

    def has_ended(self) -> bool:
        """Return whether it has; end it if its time is up."""
        self.took_s = time.monotonic() - self._began
        if self._process.poll() is None:
            if self.took_s < _LIMIT_S:
                return False
            self.problems.append(f"it took more than {_LIMIT_S:g} s")
        self.end()
        self._judge()
        return True

    def end(self) -> None:
        """End it, and whatever it has left."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            self._process.kill()
            self._process.wait()
        until = time.monotonic() + _LEFT_S
        while (left := left_behind(self._token, self._before)) and time.monotonic() < until:
            time.sleep(0.1)
        for each in left:
            self.problems.append(f"it left {each}")
            if found := re.match(r"process (\d+):", each):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(found[1]), signal.SIGKILL)
        if left:
            with one_at_a_time():
                wipe_leftovers()

    def _judge(self) -> None:
        try:
            lines = [json.loads(line) for line in self._output.read_text().splitlines()]
        except ValueError as error:
            self.problems.append(f"it printed what is no JSON: {error}")
            return
        measures = {line["what"]: set(line["peers"]) for line in lines if "what" in line}
        names = tuple(name for line in lines for name in line.get("left_out", ()))
        self.left_out = [
            f"{', '.join(line['left_out'])} ({line['why']})" for line in lines if "why" in line
        ]
        known = {} if self.name in OTHERS else page.known(self.name)
        peers = set().union(*known.values()) - set().union(*measures.values())
        missing = [*(known.keys() - measures.keys()), *(peers if measures else ())]
        if missing := sorted(name for name in missing if not name.startswith(names)):
            self.problems.append(f"missing: {', '.join(missing)}")
        if self._process.returncode != 0:
            words = self._errors.read_text(errors="replace")[-_LAST_WORDS:]
            self.problems.append(f"exit code {self._process.returncode}\n{words}")

    def __str__(self) -> str:
        words = f"{self.name:12} {'FAILED' if self.problems else 'ok':6} {self.took_s:4.0f} s"
        out = f"   left out: {'; '.join(self.left_out)}" if self.left_out else ""
        return "\n".join([words + out, *(f"    {problem}" for problem in self.problems)])


def run(names: Sequence[str]) -> bool:
    """Run the groups, tell of each how it went, and return whether all are well."""
    began, ended = time.monotonic(), list[Group]()
    for group in _ended(names):
        print(group, flush=True)
        ended.append(group)
    failed = [group.name for group in ended if group.problems]
    words = f"failed: {', '.join(failed)}" if failed else "all ok"
    print(f"{len(ended)} groups in {time.monotonic() - began:.0f} s: {words}")
    return not failed


def _ended(names: Sequence[str]) -> Iterator[Group]:
    """Yield each group once it has ended."""
    waiting, running = list(names), list[Group]()
    with tempfile.TemporaryDirectory(prefix="dlctl-bench-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < _AT_ONCE:
                    running.append(Group(waiting.pop(), Path(folder)))  # long ones stand last
                for group in [group for group in running if group.has_ended()]:
                    running.remove(group)
                    yield group
                time.sleep(0.1)
        finally:
            for group in running:
                group.end()
