"""A task that is a whole training of dlctl's, in a job directory of its own."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.ground.processes import end_child
from dlctl.contract.metrics import EPOCH, STEP, TIME
from dlctl.contract.programs.options import as_options
from search.tasks.base import BaseTask, Order

POLL_S = 0.5
_ATTEMPT = 1
_TASK = "task"
"""In the job directory: the id of the task that it is of."""
_HALT_S = 60.0
_ALLOCATION = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
               "SLURM_CLUSTER_NAME")  # fmt: skip
_WHERE = (STEP, EPOCH, TIME)


class Training(BaseTask):
    """Trains what the manifest describes, with other values for some of its keys.

    Args:
        job_dir: The search's.
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
        argv = [sys.executable, "-u", "-m", "learner.supervisor", str(folder), str(attempt)]
        env = _environment(os.environ, in_allocation=plan.launch.kind == "srun")
        env |= {"PYTHONPATH": plan.runtime_dir, "PYTHONSAFEPATH": "1"}
        process = subprocess.Popen(argv, cwd=plan.runtime_dir, env=env, stdin=subprocess.DEVNULL)
        try:
            stopped = self._follow(folder, process)
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
        values = last_values(self._lines(folder), self._metric)
        if self._metric not in values and not stopped:
            raise RuntimeError(f"the training has no metric {self._metric!r}; it has "
                               f"{', '.join(sorted(values)) or 'none'}")  # fmt: skip
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
        plan = json.loads((self._search / names.TRIAL_PLAN).read_bytes())
        for key, value in self._overrides.items():
            section, *path, last = key.split(".")
            changed = plan[section]
            for step in path:
                changed = changed[step]
            is_text = section != names.ENV or isinstance(value, str)
            changed[last] = value if is_text else json.dumps(value)
        self._fill_in(plan["framework"])
        training = plan["training"]
        for key in ("epochs", "steps"):
            if training.get(key) is not None:
                training[key] *= 1 + self._generation
        training["settings_of_build"] = self._generation > 0
        plan["job_dir"] = str(folder)
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
            contract.write_whole(folder / name, json.dumps(plan))
        return attempt

    def _fill_in(self, framework: dict[str, Any]) -> None:
        """Put the arguments into train.sh, in the place of their marks."""
        if not (recipe := framework.get("recipe")):
            return
        spec = contract.read_record(names.Spec, self._search / names.SPEC)
        assert spec is not None
        for parameter in spec.space:
            if not parameter.name.startswith(names.ARGUMENTS):
                continue
            name = parameter.name.removeprefix(names.ARGUMENTS)
            given = {name: framework["arguments"].get(name)}
            mark = names.mark_of(name)
            script = recipe["script"].replace(as_options({name: mark}), as_options(given))
            recipe["script"] = script.replace(shlex.quote(mark), shlex.quote(str(given[name])))

    def _follow(self, folder: Path, process: subprocess.Popen[bytes]) -> bool:
        """Report what the training measures; return whether the search ended it."""
        told = 0
        asked = False
        while process.poll() is None:
            time.sleep(POLL_S)
            rows = list(self._lines(folder))
            values = news_of(rows, told, self._metric)
            told = len(rows)
            if values and not asked:
                step = max(int(row.get("step", 0)) for row in rows)
                if self.report(step, **values) is not Order.CONTINUE:
                    asked = True
                    contract.write_whole(folder / contract.HALT_REQUEST, "")
        return asked

    def _lines(self, folder: Path) -> Iterator[dict[str, Any]]:
        for path in sorted((folder / contract.METRICS).glob("*-0*.jsonl")):
            for line in path.read_bytes().rpartition(b"\n")[0].splitlines():
                row = json.loads(line)
                if "event" not in row:
                    yield row


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


def _environment(variables: Mapping[str, str], *, in_allocation: bool) -> dict[str, str]:
    """Return the variables without those that describe the worker's own job.

    Args:
        in_allocation: srun starts the learners: keep what says in which job.
    """
    kept = _ALLOCATION if in_allocation else ()
    return {
        name: value for name, value in variables.items()
        if name in kept or not name.startswith(("SLURM_", "PMI"))
    }  # fmt: skip


def news_of(rows: list[dict[str, Any]], told: int, metric: str) -> dict[str, float]:
    """Return the last values of the rows that were not told.

    Once there was a validation, the metric is one of a validation, or is left out.
    """
    values = last_values(rows[told:], metric)
    is_validated = [_of_validation(row, metric) is not None for row in rows]
    if any(is_validated) and not any(is_validated[told:]):
        values.pop(metric, None)
    return values


def last_values(rows: Iterable[dict[str, Any]], metric: str) -> dict[str, float]:
    """Return the last finite value of each name; of the metric one of a validation, if any."""
    values: dict[str, float] = {}
    validated: float | None = None
    for row in rows:
        for name, value in row.items():
            if _is_finite(value) and name not in _WHERE:
                values[name] = float(value)
        found = _of_validation(row, metric)
        validated = validated if found is None else found
    if validated is not None:
        values[metric] = validated
    return values


def _of_validation(row: dict[str, Any], metric: str) -> float | None:
    """Return the metric's value in a row of a validation, as a loop or a program writes it."""
    name = metric if row.get("group") == "validation" else f"validation_{metric}"
    value = row.get(name)
    return float(value) if _is_finite(value) else None


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)
