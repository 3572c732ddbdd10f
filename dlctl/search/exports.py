"""A search as files for other programs: CSV, Parquet, and a study of Optuna's."""

from __future__ import annotations

import csv
import datetime as dt
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dlctl.contract.ground.safe_text import cells_for
from dlctl.errors import ResultsError

if TYPE_CHECKING:
    from dlctl.contract.search import Parameter, Spec
    from dlctl.search.trials import TrialRow, Trials

_HEAD = ("trial", "outcome", "metric")
_TAIL = ("seconds", "worker", "asked_at", "started_at", "ended_at", "error", "task")
_PLAIN = (str, int, float, bool, type(None))


def columns(spec: Spec) -> list[str]:
    """Return the names of the columns: a parameter's is `point.<name>`."""
    return [*_HEAD, *(f"point.{each.name}" for each in spec.space), *_TAIL]


def rows(found: Trials) -> Iterator[list[Any]]:
    """Yield the columns of each trial; None: it has no such value."""
    for row in found.rows:
        point = [_cell(row.point.get(each.name)) for each in found.spec.space]
        times = [each or None for each in (row.asked_at, row.started_at, row.ended_at)]
        seconds = row.seconds if row.outcome else None
        yield [row.number, row.outcome, row.metric, *point, seconds, row.worker, *times,
               row.error, row.id]  # fmt: skip


def _cell(value: Any) -> Any:
    """Return a value as a cell can hold it: lists and objects as JSON."""
    return value if isinstance(value, _PLAIN) else json.dumps(value)


def print_csv(found: Trials, stream: TextIO | None = None) -> None:
    """Print the trials as CSV."""
    stream = stream or sys.stdout
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(cells_for(stream, columns(found.spec)))
    for row in rows(found):
        writer.writerow(cells_for(stream, ("" if cell is None else cell for cell in row)))


def write_parquet(path: Path, found: Trials) -> int:
    """Write a row for each trial; return their number.

    Raises:
        ResultsError: pyarrow is not installed here.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise _missing("--parquet", "pyarrow") from error
    kinds = {"trial": pa.int64(), "metric": pa.float64(), "seconds": pa.float64()}
    kinds |= {name: pa.float64() for name in ("asked_at", "started_at", "ended_at")}
    for each in found.spec.space:
        kinds[f"point.{each.name}"] = {"float": pa.float64(), "int": pa.int64()}.get(
            each.kind, _kind_of(each.choices, pa)
        )
    names = columns(found.spec)
    cells = list(zip(*rows(found), strict=True)) or [() for _ in names]
    table = {}
    for name, values in zip(names, cells, strict=True):
        kind = kinds.get(name, pa.string())
        is_text = kind == pa.string()
        table[name] = pa.array([_text(v) if is_text else v for v in values], kind)
    pq.write_table(pa.table(table), path)
    return len(found.rows)


def _kind_of(choices: Sequence[Any], pa: Any) -> Any:
    """Return the type of a column that holds these values and none."""
    for kinds, column in ((bool, pa.bool_()), (int, pa.int64()), ((int, float), pa.float64())):
        if all(isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
               for value in choices):  # fmt: skip
            return column
    return pa.string()


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


# Optuna ------------------------------------------------------------------------------------------


def write_optuna(path: Path, name: str, found: Trials) -> int:
    """Write a study that Optuna and its dashboard open; return how many trials it has.

    A file that ends in `.db` or `.sqlite3` is an SQLite database, any other one a journal. A trial
    that was stopped early is PRUNED there; those that have not ended are enqueued.

    Raises:
        ResultsError: Optuna is not installed here, or the file exists.
    """
    try:
        import optuna
    except ImportError as error:
        raise _missing("--optuna", "optuna") from error
    if path.exists():
        raise ResultsError(f"{path} exists, and a study is not written over",
                           hint="name another file, or remove it")  # fmt: skip
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Optuna calls experimental, or adjusts
        if path.suffix in (".db", ".sqlite3", ".sqlite"):
            storage: Any = optuna.storages.RDBStorage(f"sqlite:///{path.resolve()}")
        else:
            from optuna.storages.journal import JournalFileBackend

            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        study = optuna.create_study(
            storage=storage, study_name=name,
            direction="maximize" if found.spec.maximize else "minimize",
        )  # fmt: skip
        study.set_metric_names([found.spec.metric])
        study.set_user_attr("strategy", found.spec.strategy)
        study.set_user_attr("seed", found.spec.seed)
        kinds = {each.name: _distribution(each, optuna) for each in found.spec.space}
        for row in found.rows:
            study.add_trial(_trial(row, found, kinds, optuna))
    return len(found.rows)


def _trial(row: TrialRow, found: Trials, kinds: dict[str, Any], optuna: Any) -> Any:
    params, distributions = {}, {}
    for name, value in row.point.items():
        if name not in kinds:
            continue
        kind, shown = kinds[name]
        params[name], distributions[name] = shown(value), kind
    attributes = {"worker": row.worker, "error": row.error, "task": row.id, "outcome": row.outcome}
    states = optuna.trial.TrialState
    system: dict[str, Any] = {}
    if not row.outcome:
        state, system, distributions = states.WAITING, {"fixed_params": params}, {}
        params = {}
    elif row.metric is None:
        state = states.FAIL
    else:
        state = states.PRUNED if row.outcome == "CANCELLED" else states.COMPLETE
    return optuna.trial.FrozenTrial(
        number=row.number, trial_id=row.number, state=state, value=row.metric,
        datetime_start=_moment(row.started_at or row.asked_at) if row.outcome else None,
        datetime_complete=_moment(row.ended_at) if row.outcome else None,
        params=params, distributions=distributions, system_attrs=system,
        user_attrs={key: value for key, value in attributes.items() if value},
        intermediate_values=dict(found.reports.get(row.number, [])),
    )  # fmt: skip


def _distribution(each: Parameter, optuna: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return a parameter's distribution, and what makes its values those of the distribution."""
    kinds = optuna.distributions
    if each.kind == "choice":
        plain = all(isinstance(value, _PLAIN) for value in each.choices)
        shown: Callable[[Any], Any] = (lambda value: value) if plain else json.dumps
        return kinds.CategoricalDistribution([shown(value) for value in each.choices]), shown
    if each.kind == "int":
        step = 1 if each.log else int(each.step or 1)
        return kinds.IntDistribution(int(each.low), int(each.high), log=each.log, step=step), int
    # A sum of steps may differ in its last digit, which Optuna would refuse.
    return kinds.FloatDistribution(each.low, each.high, log=each.log), float


def _moment(unix_s: float) -> dt.datetime:
    """Return a local time without its zone, as Optuna has them."""
    return dt.datetime.fromtimestamp(unix_s)


def _missing(option: str, package: str) -> ResultsError:
    return ResultsError(f"{option} needs the package {package}, which this Python lacks",
                        hint=f"{sys.executable} -m pip install {package}")  # fmt: skip
