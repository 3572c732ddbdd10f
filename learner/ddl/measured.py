"""Log what a script of one's own measures: `ddl.log(step, loss=0.3)`."""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import SupportsFloat

from dlctl import contract
from dlctl.contract.metrics import Source, finite, own_name
from learner.job.context import ATTEMPT_VARIABLE, JOB_VARIABLE
from learner.job.environment import PROGRESS_FILE
from learner.job.metrics import MetricsFile, Progress


class _Log:
    """The files that this process logs to; outside a dlctl job there are none."""

    def __init__(self, env: Mapping[str, str]) -> None:
        directory, attempt = env.get(JOB_VARIABLE), env.get(ATTEMPT_VARIABLE, "")
        self.rank = int(env.get("RANK", "0"))
        self.file: MetricsFile | None = None
        if directory and attempt.isdecimal():
            name = contract.metrics_file(int(attempt), self.rank, Source.PROGRAM)
            self.file = MetricsFile(Path(directory) / name)
        progress = env.get(PROGRESS_FILE)
        self.progress = Progress(Path(progress) if progress else None)
        self.newest: dict[str, float] = {}
        """The newest value by name, as the watchdog is told."""
        self._steps: dict[str, int] = {}
        """The newest step by name."""
        self._warned = False
        self._process = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._process:  # a child that was forked ends, too
            self.progress.flush()

    def note(self, step: int, names: Iterable[str]) -> None:
        """Say once if a step comes again: a curve keeps only what was logged last."""
        for name in names:
            before = self._steps.get(name, step)
            if before > step and not self._warned:
                self._warned = True
                print(f"dlctl: WARNING: ddl.log: step {step} of {name!r} comes after step {before} "
                      "and replaces all from there on: count steps from the beginning of the "
                      "training, not of an epoch.", file=sys.stderr, flush=True)  # fmt: skip
            self._steps[name] = step


_logs: dict[int, _Log] = {}
"""By process: a child that was forked begins anew."""


def log(
    step: int,
    values: Mapping[str, SupportsFloat] | None = None,
    *,
    epoch: int | None = None,
    group: str = "",
    done: float | None = None,
    every_learner: bool = False,
    **more: SupportsFloat,
) -> None:
    """Log values of a step, for `dlctl metrics`, `dlctl watch` and the guards of the manifest.

    Needs no `init`, and does nothing outside a dlctl job. A tensor of one element is a value; NaN
    and infinity are kept as "not a number". A full disk loses lines and ends nothing.

    Args:
        step: Steps done, from the beginning of the training: a restart continues to count.
        values: By name; further ones as keywords.
        epoch: Counted from 1.
        group: Which data they are of, such as `train`, `validation` or `test`.
        done: The share of the training that is done, from 0 to 1, for the progress bar.
        every_learner: Whether learners other than the first log, too, as curves of their own.
    """
    own = os.getpid()  # threads that begin at the same time share one
    found = _logs.get(own) or _logs.setdefault(own, _Log(os.environ))
    step, epoch = int(step), None if epoch is None else int(epoch)  # also of numpy and torch
    done = None if done is None else finite(float(done))
    numbers = {
        own_name(str(name)): _number(name, value)
        for name, value in {**(values or {}), **more}.items()
    }
    report = {f"{group}_{name}" if group else name: value for name, value in numbers.items()}
    found.note(step, report)
    found.newest = {**found.newest, **report}  # other threads log, too
    found.progress.update(step, epoch, found.newest, done=done)
    if found.file is not None and (found.rank == 0 or every_learner):
        found.file.append(step, epoch, numbers, group)


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number that no float can hold
        return math.inf
    except (TypeError, ValueError) as error:
        raise type(error)(f"ddl.log: {name!r} is no number: {error}") from None
