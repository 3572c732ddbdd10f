"""dlctl's own model, as a process, with a broker and a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from search_processes import Search

from dlctl.contract import search as files

SPACE = [files.Parameter("x", "float", 0, 1)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts a search of the given specification, with one worker."""
    (tmp_path / "job").mkdir()
    made: list[Search] = []

    def start(**spec: Any) -> Search:
        made.append(search := Search(tmp_path / "job", space=SPACE, **spec))
        (search.job_dir / "code" / "theirs.py").write_text(STRATEGIES)
        search.start_with_model()
        return search

    yield start
    for search in made:
        search.stop()


def ends(search: Search) -> dict[int, dict[str, Any]]:
    """Return the events of all trials once the model has ended."""
    model = search.processes["model"]
    search.wait_for(lambda: model.poll() is not None, 60)
    assert model.returncode == 0, search.logs()
    lines = (search.job_dir / files.TRIALS).read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return {event["number"]: event for event in events if event["event"] == "tell"}


def test_when_the_time_is_used_up_trials_that_wait_never_begin(started: Any) -> None:
    search = started(
        task=files.Task("python", "mine:Square", {"sleep_s": 1.2}),
        budget=files.Budget(time_s=1.0), window=6,
    )  # fmt: skip
    told = ends(search)
    assert set(told) == set(range(len(told))), "each trial has one result"
    ran = [n for n, event in told.items() if event["outcome"] == "SUCCEEDED"]
    never = [n for n, event in told.items() if event["outcome"] == "CANCELLED"]
    assert ran and len(ran) + len(never) == len(told) == 6
    assert all(told[n]["started_at"] == 0 for n in never) and never


@pytest.mark.first
def test_a_population_goes_on_from_checkpoints(started: Any) -> None:
    search = started(
        task=files.Task("python", "mine:Grows"), strategy="pbt", metric="value", maximize=True,
        options={"population": 3, "resample": 0.0}, budget=files.Budget(trials=12),
    )  # fmt: skip
    told = ends(search)
    events = (json.loads(line) for line in (search.job_dir / files.TRIALS).read_text().splitlines())
    parents = {
        trial["number"]: trial.get("parent")
        for event in events if event["event"] == "ask" for trial in event["trials"]
    }  # fmt: skip
    grown = {number: event["value"]["value"] for number, event in told.items()}
    assert sorted(grown) == list(range(12))
    for number, parent in parents.items():
        assert grown[number] == 1 + (0 if parent is None else grown[parent])
    assert max(grown.values()) >= 4, "a member's trials form a chain"


STRATEGIES = """
class TellRaises:
    def __init__(self, space, seed):
        pass

    def ask(self, n):
        return [{"x": (1, 2)}] * n

    def tell(self, trial, told):
        raise KeyError("no generation 7")
"""


@pytest.mark.first
def test_a_fault_of_the_users_strategy_ends_the_model_with_a_sentence(started: Any) -> None:
    """What else may go wrong: tests/unit/search/model/test_checked_strategy.py."""
    search = started(
        window=3, strategy="theirs:TellRaises", metric="value",
        task=files.Task("python", "mine:Square"), budget=files.Budget(trials=5),
    )  # fmt: skip
    assert search.processes["model"].wait(60) == files.EXIT_WRONG, search.logs()
    why = "can't be told a result: KeyError: 'no generation 7'"
    said = (search.job_dir / "model.log").read_text()
    assert f"dlctl: the strategy theirs:TellRaises {why}" in said
