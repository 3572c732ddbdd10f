"""A strategy of the user's that goes wrong ends the search with a sentence: no model dies again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from search_processes import Search

from dlctl.contract import search as files

STRATEGIES = """
class Plain:
    def __init__(self, space, seed, answer="{'x': 0.5}"):
        self.answer = answer

    def ask(self, n):
        return [eval(self.answer)] * n

    def tell(self, trial, told):
        pass


class TooMany(Plain):
    def ask(self, n):
        return super().ask(n + 1)


class TellRaises(Plain):
    def tell(self, trial, told):
        raise KeyError("no generation 7")


class InitRaises(Plain):
    def __init__(self, space, seed):
        self.best = space.no_such_thing
"""
WRONG = {
    "TellRaises": ({}, "can't be told a result: KeyError: 'no generation 7'"),
    "InitRaises": ({}, "can't be made: AttributeError: "),
    "NoSuchClass": ({}, "can't be made: AttributeError: "),
    "TooMany": ({}, "was asked for 3 points at most and returned 4"),
    "Plain": ({"answer": "1 / 0"}, "can't be asked for points: ZeroDivisionError: division"),
    "Plain of objects": ({"answer": "{'x': object()}"}, "returned a point that can't be written"),
    "Plain of numbers": ({"answer": "0.5"}, "returned '0.5', which is no point: a dict is one"),
}


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts a model with a strategy, a broker and a worker."""
    (tmp_path / "job").mkdir()
    made: list[Search] = []

    def start(strategy: str, options: dict[str, str], task: str) -> Search:
        made.append(search := Search(
            tmp_path / "job", space=[files.Parameter("x", "float", 0, 1)], options=options,
            strategy=f"theirs:{strategy}", metric="value", task=files.Task("python", task),
            budget=files.Budget(trials=5), window=3,
        ))  # fmt: skip
        (search.job_dir / "code" / "theirs.py").write_text(STRATEGIES)
        search.start_with_model()
        return search

    yield start
    for search in made:
        search.stop()


@pytest.mark.first("TellRaises")
@pytest.mark.parametrize("how", WRONG)
def test_the_model_says_what_the_strategy_did_and_is_not_started_again(
    how: str, started: Any
) -> None:
    options, said = WRONG[how]
    name = how.partition(" ")[0]
    search = started(name, options, "mine:Square")
    assert search.processes["model"].wait(60) == files.EXIT_WRONG, search.logs()
    assert f"dlctl: the strategy theirs:{name} {said}" in (search.job_dir / "model.log").read_text()


def test_a_strategy_needs_no_more_than_ask_and_tell(started: Any) -> None:
    search = started("Plain", {"answer": "{'x': (1, 2)}"}, "mine:Tells")
    assert search.processes["model"].wait(60) == 0, search.logs()
    lines = (search.job_dir / files.TRIALS).read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert (events.count("tell"), events.count("report")) == (5, 5)
