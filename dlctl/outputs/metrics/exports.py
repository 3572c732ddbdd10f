"""Write metrics for other tools: TensorBoard, Parquet, MLflow, Weights & Biases.

MLflow and W&B write their own folders, by their own packages; both need no server.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dlctl.contract import State
from dlctl.errors import Misused, ResultsError
from dlctl.outputs.metrics.formats import rows, write_parquet, write_tensorboard
from dlctl.units import counted, unix_seconds

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.series.merged import Entry

_MOST_AT_ONCE = 1000
"""MLflow takes so many values in one call."""


class Measured(NamedTuple):
    """A training, what was measured of it, and its parameters by name."""

    record: Record
    entries: Sequence[Entry]
    parameters: dict[str, str]


def parse_target(text: str) -> tuple[str, str]:
    """Return the format and the place that `FORMAT=PLACE` names.

    Raises:
        Misused: there is no such format, or no place.
    """
    name, _, place = text.partition("=")
    if name not in FORMATS or not place:
        raise Misused(f"{text!r} is not of the form FORMAT=PLACE, with one of {', '.join(FORMATS)}",
                      option="--export")  # fmt: skip
    return name, place


def export(name: str, place: str, found: Sequence[Measured]) -> str:
    """Write trainings in a format; return a sentence that says what was written.

    Raises:
        ResultsError: a package is missing here.
        OSError: the place can't be written.
    """
    return FORMATS[name](place, found)


class _Point(NamedTuple):
    name: str
    step: int
    time: float
    value: float


def _points(one: Measured) -> Iterator[_Point]:
    """Yield the numbers that have a step, by step: `validation/loss`, `learner-1/loss`."""
    found = []
    for row in rows(one.record.training_id, one.entries):
        _, _, learner, _, group, step, _, time, name, value = row
        if step is not None and not isinstance(value, str):
            parts = [f"learner-{learner}" if learner else "", group, name]
            number = float("nan") if value is None else float(value)
            found.append(_Point("/".join(filter(None, parts)), step, time or 0.0, number))
    yield from sorted(found, key=lambda point: point.step)


def _tensorboard(place: str, found: Sequence[Measured]) -> str:
    files = write_tensorboard(Path(place), {m.record.training_id: m.entries for m in found})
    if not files:
        return f"nothing to write into {place}: there are no numbers with a step"
    return f"{counted(len(files), 'event file')} in {place}: tensorboard --logdir {place}"


def _parquet(place: str, found: Sequence[Measured]) -> str:
    some = (row for m in found for row in rows(m.record.training_id, m.entries))
    return f"{counted(write_parquet(Path(place), some), 'row')} in {place}"


def _mlflow(place: str, found: Sequence[Measured]) -> str:
    """Write a run for each training; a place with `://` is the address of a server or database."""
    # MLflow 3.17 reads and writes folders only if it is told so.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise _missing("mlflow", "mlflow-skinny") from error
    address = place if "://" in place else Path(place).resolve().as_uri()
    client = MlflowClient(tracking_uri=address)
    for one in found:
        record, began_s = one.record, unix_seconds(one.record.created_at) or 0.0
        known = client.get_experiment_by_name(record.name)
        experiment = known.experiment_id if known else client.create_experiment(record.name)
        for old in client.search_runs([experiment], f"tags.dlctl = '{record.training_id}'"):
            client.delete_run(old.info.run_id)
        words = {"dlctl": record.training_id, "site": record.site, "tags": " ".join(record.tags),
                 "mlflow.note.content": "\n".join(record.notes)}  # fmt: skip
        run = client.create_run(experiment, round(1000 * began_s), words, record.training_id).info
        tags = [RunTag(name, text) for name, text in words.items() if text]
        parameters = [Param(name, text[:500]) for name, text in one.parameters.items()]
        client.log_batch(run.run_id, [], parameters[:100], tags)
        points = (Metric(re.sub(r"[^\w\-. /:]", "_", p.name), p.value, round(1000 * p.time), p.step)
                  for p in _points(one))  # fmt: skip
        while some := list(itertools.islice(points, _MOST_AT_ONCE)):
            client.log_batch(run.run_id, some)
        status = {State.COMPLETED: "FINISHED", State.FAILED: "FAILED"}.get(record.state, "KILLED")
        if record.state.final:
            client.set_terminated(run.run_id, status, round(1000 * record.ended_at) or None)
    allowed = "" if "://" in place else "MLFLOW_ALLOW_FILE_STORE=true "
    return (f"{counted(len(found), 'run')} in {place}; with the package mlflow: {allowed}mlflow ui "
            f"--backend-store-uri {address}")  # fmt: skip


def _wandb(place: str, found: Sequence[Measured]) -> str:
    try:
        import wandb
    except ImportError as error:
        raise _missing("wandb", "wandb") from error
    Path(place).mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
    for one in found:
        record = one.record
        run = wandb.init(
            mode="offline", dir=place, project=record.name, id=record.training_id,
            name=record.training_id, config=one.parameters, tags=[*record.tags, record.site],
            notes="\n".join(record.notes), settings=quiet, reinit="create_new",
        )  # fmt: skip
        by_step: dict[int, dict[str, float]] = defaultdict(dict)
        for point in _points(one):
            by_step[point.step] |= {point.name: point.value, "_timestamp": point.time}
        for step, values in by_step.items():
            run.log(values, step=step)
        run.finish(exit_code=int(record.state is State.FAILED))
    return f"{counted(len(found), 'run')} in {place}: wandb sync {place}/wandb/offline-run-*"


def _missing(name: str, package: str) -> ResultsError:
    return ResultsError(f"--export {name} needs the package {package}, which this Python lacks",
                        hint=f"{sys.executable} -m pip install {package}")  # fmt: skip


FORMATS: dict[str, Callable[[str, Sequence[Measured]], str]] = {
    "tensorboard": _tensorboard, "parquet": _parquet, "mlflow": _mlflow, "wandb": _wandb,
}  # fmt: skip
"""Name → what writes it."""
TAKE_PARAMETERS = ("mlflow", "wandb")
