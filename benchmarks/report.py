"""How every benchmark measures and what it prints: one JSON object per line.

    {"what": key, "unit": "s", "ours": …, "floor": …, "peers": {name: …}, "runs": n}
    {"goal": the goal with the measured ratio, "met": …}
    {"left_out": [name, …], "why": …}

Ours, the floor (the least work that could do the same) and the peers take turns, so that other load
on the machine affects all of them. Each number is the median of its runs. A number alone says
little, on this machine or another; compare ratios and differences within one run.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import pty
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class Load(IntEnum):
    """How much a benchmark does; it chooses from a tuple of three sizes."""

    FULL = 0
    QUICK = 1
    """One round."""
    SMOKE = 2
    """The least that still yields every result, whose numbers then mean nothing."""


class Rounds(NamedTuple):
    """How often to run candidates in turn: timed, and untimed before that."""

    runs: int
    warm_up: int = 0


def rounds(runs: int, warm_up: int = 2) -> tuple[Rounds, Rounds, Rounds]:
    """Return the rounds for each load; only the full one has as many as given."""
    return Rounds(runs, warm_up), Rounds(1, min(1, warm_up)), Rounds(1)


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    what: str
    unit: str
    ours: float
    floor: float
    peers: Mapping[str, float] = field(default_factory=dict)
    runs: int = 1

    def to_json(self) -> str:
        """Return the line."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


@dataclass(frozen=True)
class Command:
    """A program to time, from its start to its end."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdin: bytes = b""
    on_terminal: bool = False
    """Whether standard output and error are a terminal; otherwise they are pipes."""

    def time_s(self) -> float:
        """Run it and return the wall-clock time; raise if it fails."""
        start = time.perf_counter()
        code, output = self._run_on_terminal() if self.on_terminal else self._run_in_pipes()
        elapsed_s = time.perf_counter() - start
        if code != 0:
            last = output[-2000:].decode()
            raise RuntimeError(f"{' '.join(self.argv)}: exit code {code}: {last}")
        return elapsed_s

    def _run_in_pipes(self) -> tuple[int, bytes]:
        done = subprocess.run(self.argv, env=self.env, cwd=self.cwd, input=self.stdin,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        return done.returncode, done.stdout

    def _run_on_terminal(self) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        try:
            with subprocess.Popen(self.argv, env=self.env, cwd=self.cwd, stdin=subprocess.DEVNULL,
                                  stdout=theirs, stderr=theirs) as process:  # fmt: skip
                os.close(theirs)
                output = _read_all(ours)
            return process.returncode, output
        finally:
            os.close(ours)


def _read_all(terminal: int) -> bytes:
    output = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # Linux reports EIO when the last writer has closed it
                raise
            piece = b""
        if not piece:
            return output
        output += piece


def compare(
    what: str,
    ours: Callable[[], float],
    floor: Callable[[], float],
    peers: Mapping[str, Callable[[], float]] | None = None,
    *,
    rounds: Rounds,
    unit: str = "s",
) -> Result:
    """Run all in turn, first the untimed rounds and then the timed ones; return medians."""
    # Keys that no peer can have.
    candidates = {"\0ours": ours, "\0floor": floor, **(peers or {})}
    rounded = {name: round(value, 4) for name, value in medians(candidates, rounds).items()}
    return Result(what, unit, rounded.pop("\0ours"), rounded.pop("\0floor"), rounded, rounds.runs)


def medians(candidates: Mapping[str, Callable[[], float]], rounds: Rounds) -> dict[str, float]:
    """Run all candidates in turn, each round starting with the next one; return their medians."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for turn in range(sum(rounds)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            value = candidates[name]()
            if turn >= rounds.warm_up:
                samples[name].append(value)
    return {name: statistics.median(values) for name, values in samples.items()}


def options(program: str) -> argparse.ArgumentParser:
    """Return the parser of what every benchmark's program is given: its `load`."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    loads = parser.add_mutually_exclusive_group()
    loads.add_argument("--quick", dest="load", action="store_const", const=Load.QUICK,
                       default=Load.FULL, help="run one round")  # fmt: skip
    loads.add_argument("--smoke", dest="load", action="store_const", const=Load.SMOKE,
                       help="only see whether it works; install no peers")  # fmt: skip
    return parser


def main(measure: Callable[[Load], Iterator[Result]]) -> None:
    """Run one benchmark as a program: print each result as a line."""
    given = options(f"benchmarks.{Path(sys.argv[0]).stem}").parse_args()
    end_in_order()
    from benchmarks.goals import GOALS  # which knows this module

    for result in measure(given.load):
        say(result.to_json())
        for goal in GOALS.get(result.what, ()):
            text, is_met = goal.judge(result)
            say(json.dumps({"goal": text, "met": is_met}, ensure_ascii=False))


def leave_out(*names: str, why: str) -> None:
    """Say that peers, or results, are not measured; a name stands for all that begin with it."""
    say(json.dumps({"left_out": names, "why": why}, ensure_ascii=False))


def say(line: str) -> None:
    """Print a line; end the program quietly if the reader has gone."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for what Python flushes at exit
        sys.exit(128 + signal.SIGPIPE)


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP end this process like sys.exit, so that its children are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
