"""Compare two trainings: manifest, plan, code, where they come from, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.models.compare import compare
from dlctl.models.create import without_results
from dlctl.request.attempts import read_newest

if TYPE_CHECKING:
    from dlctl.contract import ModelVersion
    from dlctl.record import Record
    from dlctl.service.client import Client

_OF_ONE = (
    "training_id", "created_at", "job_dir", "runtime_dir", "code_digest", "code_changes",
    "left_out", "framework.recipe", "git", "name", "model",
)  # fmt: skip
"""Fields of a plan that differ between any two trainings, or that other parts show."""


def difference(mine: Client, first: Record, second: Record) -> dict[str, Any]:
    """Return how two trainings differ, as `--json` prints it; empty where they don't.

    Raises:
        RecordError: the files of one are lost, or of another version of dlctl.
        ResultsError: the code of one is no longer at its site.
        TransportError
    """
    (old, before), (new, after) = (_read(mine, each) for each in (first, second))
    found = compare(old, new) | {"first": first.training_id, "second": second.training_id}
    found["origin"] = [row for row in found["origin"] if row["what"] != "training"]
    keys = dict.fromkeys([*before, *after])
    found["plan"] = [
        {"what": key, "before": before.get(key, ""), "after": after.get(key, "")}
        for key in keys if before.get(key, "") != after.get(key, "")
    ]  # fmt: skip
    return found


def _read(mine: Client, record: Record) -> tuple[ModelVersion, dict[str, str]]:
    with closing(mine.open(record.site)) as session:
        newest = read_newest(session.transport, record)
        code = f"{record.job_dir}/{contract.CODE}"
        version = without_results(session, record, newest, code)
    values = asdict(newest.plan)
    root = f"{newest.plan.root}/"
    return version, {
        key: text.replace(record.training_id, "ID").replace(root, "")
        for key, text in _flat(values)
    }  # fmt: skip


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of a plan by their keys with dots."""
    if key in _OF_ONE or value in (None, "", [], {}):
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}".lstrip("."))
    else:
        yield key, str(value)
