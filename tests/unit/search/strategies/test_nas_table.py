"""Exact regret: strategies search 1,008 networks whose losses are known."""

from __future__ import annotations

import json
import sys

import pytest
from repository import REPOSITORY

EXAMPLE = REPOSITORY / "examples/nas-digits"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in ("compare", "make_table", "network"):
        sys.modules.pop(name, None)


def test_evolution_comes_nearer_to_the_best_network_than_chance(example):
    from compare import SEEDS, TRIALS, compare

    ends = {
        name: sum(regret[-1] for regret in seeds) / len(SEEDS)
        for name, seeds in compare().items()
    }  # fmt: skip
    assert TRIALS == 120 and len(ends) == 3
    assert ends["genetic"] < ends["random"] * 0.6
    assert ends["aging evolution"] < ends["random"] * 0.3


def test_the_table_has_each_network_and_what_it_reaches(example):
    from make_table import TABLE, name_of, points
    from network import Network

    table = json.loads(TABLE.read_text())
    every = list(points())
    assert [name_of(point) for point in every] == list(table) and len(table) == 1008
    found = Network(**every[1]).run()
    assert found["loss"] == pytest.approx(table[name_of(every[1])]["loss"], abs=0.05)
