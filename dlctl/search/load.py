"""Read search.yml: the search's own sections, and the manifest of its trials."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dlctl.contract import search as names
from dlctl.errors import ManifestError
from dlctl.manifest.errors import sentences
from dlctl.manifest.load import load_part
from dlctl.manifest.model import Manifest
from dlctl.plan.sections import training_settings
from dlctl.search.model import Dimension, SearchFile, Strategy
from dlctl.units import format_duration, parse_duration, parse_size
from dlctl.yaml_source import Document, YamlError, load_file, plain

DEFAULT_MEMORY = "1GiB"
LEAVING_S = 30.0
"""A worker takes no trial that could last into the end of its job."""
_HUB = 'exec python -u -m search.hub "${MODEL_DIR%/*}"'
_OF_ANY_JOB = ("description", "version", "requirements", "env")
_SEARCHED = re.compile(
    rf"{re.escape(names.ARGUMENTS)}.+|training\..+|{names.ENV}\.[A-Za-z_]\w*|{re.escape(names.JOB)}",
    re.ASCII,
)


@dataclass(frozen=True)
class Loaded:
    """A search as its file describes it."""

    path: Path
    file: SearchFile
    trial: dict[str, Any]
    """The manifest's keys. If trials are not trainings, only those that any job may have."""

    @property
    def spec(self) -> names.Spec:
        """Return what the nodes need to know."""
        if (manifest := self.manifest) is None:
            return _spec(self.file, _task(self.file))
        learners, memory = manifest.learners, manifest.memory_bytes
        return _spec(self.file, names.Task(
            "training", str(self.path.name), time_limit_s=manifest.time_s or 0.0,
            cpus=learners * manifest.cpus_per_learner(),
            gpus=learners * manifest.gpus_per_learner(),
            memory_bytes=None if memory is None else learners * memory,
        ))  # fmt: skip

    @property
    def manifest(self) -> Manifest | None:
        """Return the manifest of the trainings that are the trials, if they are trainings.

        Raises:
            ManifestError: with every problem, a line each.
        """
        if self.file.task is not None:
            return None
        return load_part(self.path, set(SearchFile.model_fields) - {"name"})


def load_search(path: Path, *, alone: bool = False) -> Loaded:
    """Return the search in a file.

    Args:
        alone: Whether the file was sent and lies here without its folder.

    Raises:
        ManifestError: with every problem, a line each.
    """
    if not path.exists():
        raise ManifestError(f"{path}: does not exist", hint="`dlctl search init` writes one")
    try:
        document = load_file(path, str(path))
    except YamlError as error:
        raise ManifestError(str(error), problems=error.problems) from error
    if not isinstance(document.data, dict):
        raise ManifestError(f"{path}: keys with values are allowed, as in 'name: mine'")
    own = {k: v for k, v in document.data.items() if k in SearchFile.model_fields}
    trial = {k: v for k, v in document.data.items() if k not in SearchFile.model_fields}
    try:
        file = SearchFile.model_validate(own)
    except ValidationError as error:
        problems = sentences(error, SearchFile, document, {})
        raise ManifestError("\n".join(problems), problems=problems) from None
    problems = _foreign_keys(file, trial, document)
    problems += _strategy_problems(file, document)
    if file.task is None and "framework" not in trial:
        problems.append(f"{path}: either `task` or a manifest's `framework` says what a trial is")
    problems += _space_problems(file, document)
    loaded = Loaded(path, file, plain(trial))
    if not problems and (manifest := loaded.manifest) is not None:
        settings = vars(training_settings(manifest))
        unknown = [name for name in file.space if name.startswith("training.")
                   and name.removeprefix("training.") not in settings]  # fmt: skip
        problems += [
            f"{document.where(('space', name), key=True)}: space.{name}: the built-in loop has no "
            f"such setting; it has {', '.join(settings)}"
            for name in unknown
        ]
        if manifest.framework.command is not None:
            problems += [
                f"{document.where(('space', name), key=True)}: space.{name}: a command gets no "
                "arguments: search a variable that stands in it, such as env.LR for `--lr $LR`"
                for name in file.space if name.startswith(names.ARGUMENTS)
            ]  # fmt: skip
        problems += _job_problems(loaded, document, alone)
        if (manifest.nodes or 1) != 1:
            problems.append(f"{path}: nodes: the learners of a trial share the node of a worker")
        if manifest.parameter_server is not None:
            problems.append(f"{path}: parameter_server: a trial has none in this version")
    workers_s = _seconds(file.workers.time)
    if not problems and workers_s and workers_s < loaded.spec.task.time_limit_s + LEAVING_S:
        problems.append(
            f"{document.where(('workers', 'time'))}: workers.time: {file.workers.time} is too short"
            f": a trial may take {format_duration(loaded.spec.task.time_limit_s)}, and a worker "
            f"leaves {LEAVING_S:g} s before its end"
        )
    if problems:
        raise ManifestError("\n".join(problems), problems=problems)
    return loaded


def _strategy_problems(file: SearchFile, document: Document) -> Iterator[str]:
    """Yield what is wrong with the strategy's name and, if it is dlctl's own, its options."""
    name = file.strategy.name
    if ":" not in name and name not in names.STRATEGIES:
        yield (
            f"{document.where(('strategy', 'name'))}: strategy.name: there is no strategy {name!r}"
            f"{_meant(name, names.STRATEGIES)} There are {', '.join(names.STRATEGIES)}"
        )
    if (known := names.OPTIONS.get(name)) is None:
        return
    for key, value in (file.strategy.model_extra or {}).items():
        trail = ("strategy", key)
        if key not in known:
            allowed = [*Strategy.model_fields, *known]
            has = f"it has {', '.join(known)}" if known else "it has none"
            yield (
                f"{document.where(trail, key=True)}: strategy.{key}: {name} has no such option"
                f"{_meant(key, allowed)} {has[0].upper()}{has[1:]}"
            )
        elif fault := known[key].fault(plain(value)):
            yield f"{document.where(trail)}: strategy.{key}: {fault}, and not {plain(value)!r}"


def _space_problems(file: SearchFile, document: Document) -> list[str]:
    """Return what is wrong with the parameters' names and conditions."""
    problems: list[str] = []
    for name, dimension in file.space.items():
        wrong = [other for other in dimension.when if other not in file.space]
        where = document.where(("space", name), key=True)
        problems += [f"{where}: space.{name}.when: there is no {other!r}" for other in wrong]
        problems += [f"{where}: space.{name}.when: {reason}" for reason in _never(file.space, name)]
        if file.task is None and not _SEARCHED.fullmatch(name):
            problems.append(
                f"{where}: space.{name}: in a training, {names.ARGUMENTS}<name>, training.<name>, "
                f"{names.ENV}.<VARIABLE> and {names.JOB} can be searched"
            )
    return problems


def _job_problems(loaded: Loaded, document: Document, alone: bool) -> list[str]:
    """Return what is wrong with the files of which each trial takes one."""
    if (dimension := loaded.file.space.get(names.JOB)) is None:
        return []
    where = f"{document.where(('space', names.JOB), key=True)}: space.{names.JOB}"
    if "job" not in loaded.trial["framework"]:
        return [f"{where}: the manifest has no {names.JOB}, which a trial could change"]
    if dimension.choice is None:
        return [f"{where}: a choice of files is allowed, as in {{choice: [one.py, two.py]}}"]
    folder = loaded.path.parent
    files = () if alone else dimension.choice
    missing = [str(name) for name in files if not (folder / str(name)).is_file()]
    return [f"{where}: there is no file {name} in {folder}" for name in missing]


def _foreign_keys(file: SearchFile, trial: dict[str, Any], document: Document) -> list[str]:
    """Return what is wrong with the keys that are a manifest's, or nobody's."""
    if file.task is None:
        return []
    problems = []
    for key in trial:
        if key in _OF_ANY_JOB:
            continue
        says = "is a key of a training's manifest, and with `task` trials are no trainings"
        if key not in Manifest.model_fields:
            says = f"unknown key{_meant(key, [*SearchFile.model_fields, *_OF_ANY_JOB])}"
        problems.append(f"{document.where((key,), key=True)}: {key}: {says}")
    return problems


def _meant(word: str, allowed: Iterable[str]) -> str:
    near = difflib.get_close_matches(word.lower()[:80], list(allowed), 1, 0.55)
    return f"; did you mean {near[0]!r}?" if near else "."


def _never(space: dict[str, Dimension], name: str) -> Iterator[str]:
    """Yield why a parameter would exist in no point."""
    for other, values in space[name].when.items():
        choices = space[other].choice if other in space else None
        for value in values if isinstance(values, list) else [values]:
            if choices is not None and value not in choices:
                shown = ", ".join(map(str, choices))
                yield f"{other} is never {plain(value)!r}; it is one of {shown}"
    seen, left = set[str](), list(space[name].when)
    while left:
        if (other := left.pop()) == name:
            yield "it depends on itself"
            return
        if other in space and other not in seen:
            seen.add(other)
            left += space[other].when


def _trials(file: SearchFile) -> int | None:
    """Return the most trials: those of the budget, or the points of a grid of choices."""
    wanted, choices = file.budget.trials, [one.choice for one in file.space.values()]
    if file.strategy.name != "grid" or None in choices or any(d.when for d in file.space.values()):
        return wanted
    points = math.prod(len(choice or ()) for choice in choices)
    return points if wanted is None else min(wanted, points)


def _spec(file: SearchFile, task: names.Task) -> names.Spec:
    strategy, budget, workers = file.strategy, file.budget, file.workers
    options = dict(strategy.model_extra or {})
    return names.Spec(
        name=file.name,
        space=[_parameter(name, dimension) for name, dimension in file.space.items()],
        task=task,
        strategy=strategy.name,
        options=plain(options),
        metric=file.metric.name,
        maximize=file.metric.goal == "maximize",
        seed=strategy.seed,
        deterministic=strategy.deterministic,
        window=strategy.window,
        budget=names.Budget(
            _trials(file), _seconds(budget.time), budget.node_hours, budget.failures
        ),
        workers=names.Workers(
            least=workers.jobs.least, most=workers.jobs.most, slots=workers.slots,
            time_s=_seconds(workers.time), partition=workers.partition,
            idle_s=parse_duration(workers.idle), per_broker=workers.per_broker,
        ),
    )  # fmt: skip


def _seconds(text: str | None) -> int | None:
    return None if text is None else parse_duration(text)


def _parameter(name: str, dimension: Dimension) -> names.Parameter:
    when = {
        other: plain(values) if isinstance(values, list) else [plain(values)]
        for other, values in dimension.when.items()
    }
    if dimension.choice is not None:
        return names.Parameter(name, "choice", choices=dimension.choice, when=when)
    low, high = dimension.float_ or dimension.int_ or (0, 0)
    kind = "float" if dimension.float_ is not None else "int"
    return names.Parameter(name, kind, low, high, dimension.step, dimension.log, when=when)


def _task(file: SearchFile) -> names.Task:
    task = file.task
    assert task is not None
    return names.Task(
        type=task.type or ("python" if task.python is not None else "exec"),
        target=task.target or task.python or task.exec or "",
        constants=plain(task.arguments),
        time_limit_s=parse_duration(task.time),
        cpus=task.cpus,
        gpus=task.gpus,
        memory_bytes=None if task.memory is None else parse_size(task.memory),
    )


def hub_manifest(loaded: Loaded) -> bytes:
    """Return the manifest of the training that is the search's hub."""
    hub = loaded.file.hub
    time = hub.time or loaded.file.budget.time
    return _job_manifest(loaded, 1, 0, hub.memory, time, hub.partition)


def worker_manifest(loaded: Loaded) -> bytes:
    """Return the manifest of a job that runs trials: only its resources count."""
    workers, task = loaded.file.workers, loaded.spec.task
    memory = workers.slots * (task.memory_bytes or parse_size(DEFAULT_MEMORY))
    return _job_manifest(loaded, workers.slots * task.cpus, workers.slots * task.gpus,
                         f"{-(-memory >> 20)}MiB", workers.time, workers.partition)  # fmt: skip


def _job_manifest(
    loaded: Loaded, cpus: int, gpus: int, memory: str, time: str | None, partition: str | None
) -> bytes:
    manifest: dict[str, Any] = {
        "name": loaded.file.name, "framework": {"name": names.FRAMEWORK, "command": _HUB},
        "learners": 1, "cpus": cpus, "gpus": gpus, "memory": memory,
    }  # fmt: skip
    if time:
        manifest["time"] = time
    if partition:
        manifest["scheduler"] = {"partition": partition}
    common = {k: v for k, v in loaded.trial.items() if k in ("requirements", "env")}
    return json.dumps(manifest | common).encode()
