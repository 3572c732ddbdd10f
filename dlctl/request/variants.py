"""The trainings of one command: manifests × the points of a sweep × repetitions with other seeds.

A sweep's file is a grid, `{framework.arguments.lr: [0.1, 0.01], learners: [1, 2]}`, of which every
combination is a point, or a list of points, `[{framework.arguments.lr: 0.1, learners: 1}, …]`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlctl.errors import ManifestError
from dlctl.manifest.overrides import Overrides
from dlctl.yaml_source import Document, Trail, YamlError, load_file

MOST = 10_000
"""More trainings than this are taken for a mistake in the grid."""
SEED = "training.seed"
_OPTIONS = {field.name for field in dataclasses.fields(Overrides)} - {"set"}
"""Keys that have an option of their own; `partition` is `scheduler.partition`."""


@dataclass(frozen=True)
class Variant:
    """One training of several: a manifest, and what is put into it."""

    manifest: Path
    overrides: Overrides
    label: str
    """What tells it from the others, as `lr=0.1 seed=2`; empty if nothing does."""


def variants(
    manifests: Sequence[Path], overrides: Overrides, sweep: Path | None = None,
    repeat: int | None = None, seed_from: int | None = None,
) -> list[Variant]:  # fmt: skip
    """Return the trainings that a command asks for, in the order in which they are submitted.

    Args:
        manifests: One file each.
        overrides: What the command line puts into all of them; a point of the sweep wins.
        sweep: A grid, or a list of points.
        repeat: How often each point is trained; each time with the next seed, if there is a first.
        seed_from: The first seed; 1 if only `repeat` is given.

    Raises:
        ManifestError: the sweep's file is wrong, or asks for too many.
    """
    points: list[dict[str, Any]] = [{}] if sweep is None else _points(sweep)
    seeds: Iterable[dict[str, Any]] = [{}]
    count = len(manifests) * len(points) * (repeat or 1)
    if repeat is not None or seed_from is not None:
        first = 1 if seed_from is None else seed_from
        seeds = ({SEED: seed} for seed in range(first, first + (repeat or 1)))
    if count > MOST:
        raise ManifestError(f"{count:,} trainings are more than the {MOST:,} that one command may "
                            "submit", hint="a search may: dlctl search init")  # fmt: skip
    found = []
    for manifest, point, seed in itertools.product(manifests, points, seeds):
        values = point | seed
        label = [f"{_short(key, values)}={_typed(value)}" for key, value in values.items()]
        name = [str(manifest)] if len(manifests) > 1 else []
        found.append(Variant(manifest, _with(overrides, values), " ".join(name + label)))
    return found


def _short(key: str, among: dict[str, Any]) -> str:
    last = key.rpartition(".")[2]
    alike = [other for other in among if other.rpartition(".")[2] == last]
    return last if len(alike) == 1 and not last.isdecimal() else key


def _typed(value: Any) -> str:
    """Return a value as a person would type it for an option."""
    return value if isinstance(value, str) else _quoted(value)


def _quoted(value: Any) -> str:
    """Return a value as `--set` takes it: text stays text, whatever it looks like."""
    return getattr(value, "text", None) or json.dumps(value, ensure_ascii=False)


def _with(overrides: Overrides, values: dict[str, Any]) -> Overrides:
    options = {key: _typed(value) for key, value in values.items() if key in _OPTIONS}
    pairs = tuple(f"{key}={_quoted(value)}" for key, value in values.items() if key not in _OPTIONS)
    return replace(overrides, **options, set=(*overrides.set, *pairs))


def _points(path: Path) -> list[dict[str, Any]]:
    """Return the points of a sweep's file.

    Raises:
        ManifestError
    """
    try:
        document = load_file(path, str(path))
    except YamlError as error:
        raise ManifestError("\n".join(error.problems), problems=error.problems) from None
    problems: list[str] = []
    data = document.data
    if isinstance(data, dict):
        keys = list(data)
        lists = [_values(document, key, data[key], problems) for key in keys]
        points = [dict(zip(keys, each, strict=True)) for each in itertools.product(*lists)]
    elif isinstance(data, list):
        points = [_point(document, number, each, problems) for number, each in enumerate(data)]
    else:
        problems.append(f"{path}: a sweep is keys with lists of values, or a list of points")
    if problems:
        raise ManifestError("\n".join(problems), problems=problems)
    if not points:
        raise ManifestError(f"{path}: asks for no training")
    return points


def _values(document: Document, key: str, values: Any, problems: list[str]) -> list[Any]:
    if not isinstance(values, list) or not values:
        problems.append(f"{document.where((key,), key=True)}: {key}: a list of values is allowed, "
                        f"such as {key}: [1, 2]")  # fmt: skip
        return []
    return [
        _single(document, (key, number), key, value, problems)
        for number, value in enumerate(values)
    ]


def _point(document: Document, number: int, point: Any, problems: list[str]) -> dict[str, Any]:
    if not isinstance(point, dict):
        problems.append(f"{document.where((number,))}: a point is keys with values, such as "
                        "{framework.arguments.lr: 0.1}")  # fmt: skip
        return {}
    return {
        key: _single(document, (number, key), key, value, problems) for key, value in point.items()
    }


def _single(document: Document, trail: Trail, key: str, value: Any, problems: list[str]) -> Any:
    if isinstance(value, dict):
        problems.append(f"{document.where(trail)}: {key}: a single value or a list is allowed; "
                        "name a key within it with dots")  # fmt: skip
    return value
