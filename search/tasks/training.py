"""A task that is a whole training of dlctl's, in a job directory of its own."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.ground import outside
from dlctl.contract.ground.follow import LineFollower, Position
from dlctl.contract.ground.outside import PYTHON
from dlctl.contract.ground.processes import end_child
from dlctl.contract.launchers import GPU_VARIABLES, LAUNCHERS, outside_of_job
from dlctl.contract.measured.judged_series import VALIDATED, data_of
from dlctl.contract.metrics import EPOCH, EVENT, GROUP, STEP, TIME, Source, parse_metrics_name
from search.tasks import BaseTask, Order

POLL_S = 0.5
_ATTEMPT = 1
_TASK = "task"
"""In the job directory: the id of the task that it is of."""
_HALT_S = 60.0
_WHERE = (STEP, EPOCH, TIME)


class Training(BaseTask):
    """Trains what the manifest describes, with other values for some of its keys.

    Args:
        overrides: The manifest's key, such as `training.<name>` → value.
        metric: The name in the training's metrics whose last value counts; a value of the group
            `validation` comes before one of any other.
        generation: How many trials this one goes on from, one after the other. Each adds what the
            manifest says of epochs and steps.
    """

    def __init__(
        self, job_dir: str, overrides: Mapping[str, Any], metric: str, generation: int = 0
    ) -> None:
        self._search, self._overrides, self._metric = Path(job_dir), overrides, metric
        self._generation = generation

    def run(self) -> dict[str, float]:
        """Train to the end, or until the search has seen enough.

        Raises:
            RuntimeError: the training failed; its verdict says why.
        """
        folder = self.checkpoint / "job"
        attempt = self._make(folder)
        plan = contract.read_record(contract.Plan, folder / contract.plan_file(attempt))
        assert plan is not None
        argv = [PYTHON, "-u", "-m", "learner.supervisor", str(folder), str(attempt)]
        marks = os.environ.keys() - outside_of_job(os.environ, LAUNCHERS[plan.launch.kind]).keys()
        gpus = {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}
        env = {**gpus, "PYTHONPATH": plan.runtime_dir, "PYTHONSAFEPATH": "1"}
        measured = Measured(folder / contract.METRICS, self._metric)
        process = outside.start(argv, Path(plan.runtime_dir), marks, env)
        try:
            stopped = self._follow(measured, process)
        finally:
            end_child(process, _HALT_S)
        verdict = contract.read_record(contract.Verdict, folder / contract.verdict_file(attempt))
        if verdict is None or verdict.state not in (
            contract.State.COMPLETED,
            contract.State.HALTED,
        ):
            why = verdict.reason if verdict else f"exit code {process.returncode}"
            raise RuntimeError(f"the training failed: {why}")
        if verdict.state is contract.State.HALTED and not stopped:
            self._wait_for_order()
        measured.news(last=True)
        values = measured.values
        if self._metric not in values and not stopped:
            own = sorted(values.keys() - measured.of_nodes)
            raise RuntimeError(f"the training has no metric {self._metric!r}; it has "
                               f"{', '.join(own) or 'none'}")  # fmt: skip
        return values

    def _wait_for_order(self) -> None:
        """Wait for the order to save: the scheduler, which ends the worker, was quicker."""
        until = time.monotonic() + _HALT_S
        while self.report(0) is Order.CONTINUE and time.monotonic() < until:
            time.sleep(POLL_S)

    def _make(self, folder: Path) -> int:
        """Make the job directory, or a further attempt in one that was handed back.

        Of the training that this one goes on from, only the checkpoints count.
        """
        _keep_checkpoints(folder, self.checkpoint.parent.name)
        common = contract.read_record(contract.Plan, self._search / names.TRIAL_PLAN)
        assert common is not None
        plan = names.trial_plan(common, self._overrides, self._generation, str(folder))
        attempt = _ATTEMPT
        while (folder / contract.attempt_dir(attempt)).exists():
            attempt += 1
        for name in (contract.attempt_dir(attempt), contract.CONTROL, contract.LOGS,
                     contract.JOB_STATE, contract.METRICS, contract.CHECKPOINTS):  # fmt: skip
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / contract.HALT_REQUEST).unlink(missing_ok=True)  # an earlier run's
        if not (folder / contract.CODE).exists():
            (folder / contract.CODE).symlink_to(self._search / contract.CODE)
        for name in (contract.PLAN, contract.plan_file(attempt)):
            contract.write_whole(folder / name, contract.to_json(plan))
        return attempt

    def _follow(self, measured: Measured, process: subprocess.Popen[bytes] | outside.Call) -> bool:
        """Report what the training measures; return whether the search ended it."""
        is_halting = False
        while process.poll() is None:
            time.sleep(POLL_S)
            news = measured.news()
            if news and not is_halting and self.report(measured.step, **news) is not Order.CONTINUE:
                is_halting = True
                contract.write_whole(measured.folder.parent / contract.HALT_REQUEST, "")
        return is_halting


class Measured:
    """The metrics that a training has measured so far, read as they come.

    Attributes:
        values: The last finite value of each name; of the metric one of a validation, if any.
        of_nodes: Which of them nobody but dlctl measured.
        step: The highest step.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self.folder, self._metric = folder, metric
        self._name = _whole_name(metric)
        self.of_nodes: set[str] = set()
        self.values: dict[str, float] = {}
        self.step = 0
        self._is_validated = False
        self._files: dict[Path, LineFollower] = {}

    def news(self, *, last: bool = False) -> dict[str, float]:
        """Return the last values of what is new.

        Once there was a validation, the metric is one of a validation, or is left out.

        Args:
            last: The training has ended.
        """
        for path in self.folder.glob("*.jsonl"):
            if (named := parse_metrics_name(path.name)) and named[1] == 0:
                self._files.setdefault(path, LineFollower(path, Position()))
        news: dict[str, float] = {}
        for path in sorted(self._files):
            named = parse_metrics_name(path.name)
            while text := self._files[path].lines(last):
                found = self._take(text)
                news |= found
                if named and named[2] is Source.NODE:
                    self.of_nodes |= found.keys()
        return news

    def _take(self, text: str) -> dict[str, float]:
        rows = [row for row in map(json.loads, text.split("\n")[:-1]) if EVENT not in row]
        news: dict[str, float] = {}
        validated: float | None = None
        for row in rows:
            self.step = max(self.step, int(row.get(STEP, 0)))
            group = str(row.get(GROUP, ""))
            prefix = "" if group not in VALIDATED else "test_" if group == "test" else "validation_"
            mine = {f"{prefix}{name}": float(value) for name, value in row.items()
                    if _is_finite(value) and name not in _WHERE}  # fmt: skip
            news |= mine
            for name, value in mine.items():
                if _whole_name(name) == self._name:
                    news[self._metric] = value
            validated = mine.get(f"validation_{self._metric}", validated)
        if validated is not None:
            news[self._metric], self._is_validated = validated, True
        elif self._is_validated:
            news.pop(self._metric, None)
        self.values |= news
        return news


def _whole_name(name: str) -> str:
    """Return `validation_acc` for the `val_acc` that a program prints."""
    group, own = data_of(name)
    return own if group in ("", "train") else f"{group}_{own}"


def _keep_checkpoints(folder: Path, task_id: str) -> None:
    """Empty a job directory that another task has left; keep its checkpoints."""
    mark = folder / _TASK
    if folder.exists() and (not mark.exists() or mark.read_text() != task_id):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                if path.name != contract.CHECKPOINTS:
                    shutil.rmtree(path)
            else:
                path.unlink()
    folder.mkdir(exist_ok=True)
    contract.write_whole(mark, task_id)


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)
