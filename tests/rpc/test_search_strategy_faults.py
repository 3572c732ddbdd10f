"""A strategy of the user's that goes wrong ends the search with a sentence: no model dies again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from search_processes import Search

from dlctl.contract import search as files

STRATEGIES = """
class Plain:
    def __init__(self, space, seed):
        pass

    def ask(self, n):
        return [{"x": (1, 2)}] * n

    def tell(self, trial, told):
        pass


class TellRaises(Plain):
    def tell(self, trial, told):
        raise KeyError("no generation 7")
"""


def ended(tmp_path: Path, strategy: str, task: str) -> tuple[int, Search]:
    """Return with what a model that asks this strategy ends, and its search."""
    (tmp_path / "job").mkdir()
    search = Search(
        tmp_path / "job", space=[files.Parameter("x", "float", 0, 1)], window=3,
        strategy=f"theirs:{strategy}", metric="value", task=files.Task("python", f"mine:{task}"),
        budget=files.Budget(trials=5),
    )  # fmt: skip
    (search.job_dir / "code" / "theirs.py").write_text(STRATEGIES)
    try:
        search.start_with_model()
        return search.processes["model"].wait(60), search
    finally:
        search.stop()


@pytest.mark.first
def test_the_model_says_what_the_strategy_did_and_is_not_started_again(tmp_path: Path) -> None:
    """What else may go wrong: tests/unit/search/model/test_guard.py."""
    code, search = ended(tmp_path, "TellRaises", "Square")
    assert code == files.EXIT_WRONG, search.logs()
    why = "can't be told a result: KeyError: 'no generation 7'"
    said = (search.job_dir / "model.log").read_text()
    assert f"dlctl: the strategy theirs:TellRaises {why}" in said


def test_a_strategy_needs_no_more_than_ask_and_tell(tmp_path: Path) -> None:
    code, search = ended(tmp_path, "Plain", "Tells")
    assert code == 0, search.logs()
    lines = (search.job_dir / files.TRIALS).read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert (events.count("tell"), events.count("report")) == (5, 5)
