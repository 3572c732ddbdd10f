"""Read tables that loops print: a line of names, of which `epoch` is the first, then numbers. Pure.

fastai, skorch and ultralytics print such tables, and so does a loop that prints CSV.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlctl.contract.measured.judged_series import RATE_NAMES, is_better_lower
from dlctl.contract.metrics import LEARNING_RATE
from learner.collect.parsers.prose import Line

_CELLS = re.compile(r"\s*[,;|]\s*|\s{2,}|\t")
_PLACES = {"epoch": "epoch", "step": "step", "iter": "step", "iteration": "step"}
_PLACE = re.compile(r"(\d+)(?:/\d+)?")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|[-+]?inf", re.IGNORECASE)


def _cells(line: str) -> list[str]:
    return _CELLS.split(line.strip().strip("|").strip())


def names(line: str) -> list[str]:
    """Return the names of the columns, if a line is a table's first one; else none."""
    found = [cell.strip("# ").lower().replace(" ", "_") for cell in _cells(line)]
    is_head = found[0] in _PLACES and len(found) > 1 and not any(map(_NUMBER.fullmatch, found))
    return found if is_head and any(is_better_lower(name) is not None for name in found) else []


def read(line: str, columns: Sequence[str]) -> Line | None:
    """Return what a row says; None if the line is none."""
    cells = _cells(line)
    place = _PLACE.fullmatch(cells[0])
    if place is None or len(cells) < len(columns):
        return None
    values: list[tuple[str, float | str]] = []
    for name, cell in ((name, cells[n]) for n, name in enumerate(columns) if n):
        is_rate = name in (*RATE_NAMES, "learning_rate")
        if (is_rate or is_better_lower(name) is not None) and _NUMBER.fullmatch(cell.rstrip("%")):
            values.append((LEARNING_RATE if is_rate else name, cell.rstrip("%")))
    is_epoch = _PLACES[columns[0]] == "epoch"
    return Line(int(place[1]) if is_epoch else None, None if is_epoch else int(place[1]), None,
                values, "")  # fmt: skip
