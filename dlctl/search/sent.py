"""The search.yml that was sent: what a search goes on with, and what reproduces its trials."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dlctl import contract
from dlctl.contract import search as names
from dlctl.errors import ResultsError
from dlctl.files.small_files import read_files
from dlctl.lifecycle import read_plan
from dlctl.lifecycle.remote_module import run_module
from dlctl.search.load import Loaded, load_search
from dlctl.search.model import SearchFile
from dlctl.yaml_source import load_bytes, plain

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.search.trials import TrialRow

_KEPT_OF_WORKERS = ("time", "partition")


def read_sent(session: Session, record: Record) -> tuple[str, bytes]:
    """Return the name of a search's file, and its content at the site.

    Raises:
        ResultsError: it is no longer there.
        TransferError: the site can't be read.
    """
    name = Path(record.manifest_path).name
    path = f"{record.job_dir}/{contract.CODE}/{name}"
    content = read_files(session.transport, [path])[path]
    if content is None:
        raise ResultsError(f"{path} is gone, which the search was started from",
                           hint=f"dlctl show {record.training_id}")  # fmt: skip
    return name, content


@contextlib.contextmanager
def sent_search(session: Session, record: Record) -> Iterator[Loaded]:
    """Yield a search as it was sent.

    Raises:
        ResultsError, TransferError: as `read_sent`.
        ManifestError: this version of dlctl does not understand it.
    """
    name, content = read_sent(session, record)
    with tempfile.TemporaryDirectory(prefix="dlctl-search-") as folder:
        file = Path(folder, name)
        file.write_bytes(content)
        yield load_search(file, alone=True)


def manifest_of(session: Session, record: Record, spec: names.Spec, row: TrialRow) -> str:
    """Return what runs one trial again, made from the search.yml that was sent.

    For a training it is its manifest, for `dlctl submit`; for other tasks a search.yml with one
    point, for `dlctl search start`.

    Raises:
        ResultsError: the search.yml is no longer at the site.
        TransferError: the site can't be read.
    """
    name, content = read_sent(session, record)
    document = plain(load_bytes(content, name).data)
    made = training_again(document, row) if spec.task.type == "training" else (
        task_again(document, spec, row))  # fmt: skip
    value = "" if row.metric is None else f": {spec.metric} {row.metric:.10g}"
    head = f"# Trial {row.number} of the search {record.training_id}{value}\n"
    return head + yaml.safe_dump(made, sort_keys=False, allow_unicode=True)


def training_again(document: dict[str, Any], row: TrialRow) -> dict[str, Any]:
    """Return the manifest of the training that a trial is. Pure."""
    kept = {k: v for k, v in document.items() if k == "name" or k not in SearchFile.model_fields}
    made: dict[str, Any] = dict(plain(kept))
    for name, value in row.point.items():
        *path, last = name.split(".")
        section = made
        for key in path:
            section[key] = dict(section.get(key) or {})
            section = section[key]
        section[last] = value
    return made


def task_again(document: dict[str, Any], spec: names.Spec, row: TrialRow) -> dict[str, Any]:
    """Return the search.yml that runs one point once. Pure."""
    made = {k: v for k, v in document.items() if k not in ("strategy", "space", "budget")}
    workers = dict(made.pop("workers", None) or {})
    made["space"] = {name: {"choice": [value]} for name, value in row.point.items()}
    made["strategy"] = {"name": "grid", "seed": spec.seed}
    made["budget"] = {"trials": 1}
    made["workers"] = {"jobs": min(1, spec.workers.most)} | {
        k: workers[k] for k in _KEPT_OF_WORKERS if k in workers
    }
    return made


def replay(session: Session, record: Record, timings: int | None) -> dict[str, Any]:
    """Ask the strategy again at the site; return whether its points are those recorded.

    Args:
        timings: with how many other timings of the workers; None: a few if the search is
            deterministic, else none.

    Raises:
        ResultsError: the search has no trial, or its strategy can't be made.
        TransportError
    """
    plan = read_plan(session, record)
    arguments = [record.job_dir] if timings is None else [record.job_dir, str(timings)]
    value = run_module(session, plan, "search.model.replay", arguments)
    assert isinstance(value, dict)
    return value
