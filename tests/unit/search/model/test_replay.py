"""A search is asked again, and its points compared with those in its log."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest
from repository import REPOSITORY

from dlctl import contract
from dlctl.contract import search as names
from search.model.log import TrialLog
from search.model.replay import replay
from search.model.state import Ended, Search
from search.model.strategy import open_strategy

SPACE = [names.Parameter("x", "float", 0.0, 1.0), names.Parameter("n", "int", 1, 9)]
SEARCHED = {
    "random": {}, "grid": {"levels": 3}, "latin_hypercube": {}, "genetic": {"population": 5},
    "aging": {"population": 5, "sample": 2}, "asha": {"first": 1, "most": 9}, "hyperband": {},
    "pbt": {"population": 4},
}  # fmt: skip


def spec(strategy="genetic", trials=24, **more):
    return names.Spec("s", SPACE, names.Task("python"), strategy, SEARCHED.get(strategy, {}),
                      metric="loss", seed=4, budget=names.Budget(trials), **more)  # fmt: skip


def run(path, what, seed=0, most=10_000):
    """Run a search with real files; trials end in a random order, and some fail."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_strategy(what) as strategy:
        end(Search(what, strategy, TrialLog(path)), random.Random(seed), what.window or 4, most)
    return [json.loads(line) for line in path.read_text().splitlines()]


def end(search, chance, window, most):
    while not search.is_done() and most:
        while n := search.wanted(window):
            search.ask(n)
        if not search.outstanding:
            break
        number = chance.choice(sorted(search.outstanding))
        point = search.trials[number].point
        loss = (point["x"] - 0.5) ** 2 + point["n"]
        for step in (1, 2):
            search.report(search.outstanding[number], step, {"loss": loss + 1 / step})
        outcome = "FAILED" if chance.random() < 0.2 else "SUCCEEDED"
        search.end(search.outstanding[number], Ended(outcome, {"loss": loss}))
        most -= 1


@pytest.mark.first("[!nt]*")
@pytest.mark.parametrize("strategy", [*sorted(SEARCHED), "nsga2", "tpe"])
def test_a_deterministic_search_is_the_same_with_any_timing(tmp_path, strategy):
    what = spec(strategy, deterministic=True, window=4)
    told = replay(what, run(tmp_path / "trials.jsonl", what), timings=5)
    assert told == {"trials": told["trials"], "deterministic": True, "timings": 5, "same": True,
                    "differs": None}  # fmt: skip
    assert told["trials"] >= 9


def test_other_timings_change_a_search_that_is_not_deterministic(tmp_path):
    """This is what `deterministic` is for; in the order of its log it is the same."""
    what = spec()
    events = run(tmp_path / "trials.jsonl", what)
    assert replay(what, events)["same"] and replay(what, events)["timings"] == 0
    told = replay(what, events, timings=5)
    assert not told["same"] and told["differs"]["by"] == "timings"
    assert told["differs"]["recorded"] != told["differs"]["asked"]


def test_the_first_trial_that_differs_is_named(tmp_path):
    what = spec(deterministic=True, window=4)
    events = run(tmp_path / "trials.jsonl", what)
    asked = [trial for event in events if event["event"] == "ask" for trial in event["trials"]]
    asked[9]["point"]["x"] += 1e-9
    told = replay(what, events)
    assert (told["same"], told["differs"]["number"], told["differs"]["by"]) == (False, 9, "log")
    assert told["differs"]["recorded"] == {"point": asked[9]["point"]}


def test_a_result_that_was_changed_is_found(tmp_path):
    """The strategy hears something else than it did, so a later child is another one."""
    what = spec(deterministic=True, window=4)
    events = run(tmp_path / "trials.jsonl", what)
    told = [event for event in events if event["event"] == "tell" and event["number"] < 5]
    for event in told:
        event["metric"] = -(event["metric"] or 0.0) + 100 * event["number"]
    assert not replay(what, events)["same"]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_search_that_goes_on_is_compared_as_far_as_it_is(tmp_path, deterministic):
    what = spec(deterministic=deterministic, window=4)
    events = run(tmp_path / "trials.jsonl", what, most=7)
    told = replay(what, events, timings=3 if deterministic else None)
    assert told["same"] and 7 < told["trials"] < 24


def ask(job_dir, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "search.model.replay", str(job_dir), *arguments],
        cwd=REPOSITORY, env=os.environ | {"DLCTL_ANSWER_MARK": "mark"}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("mark ")]
    return json.loads(line.removeprefix("mark "))


CODE = """\
import os
print("the user's code prints")
class Mine:
    def __init__(self, space, seed):
        self.asked = 0
    def ask(self, n):
        self.asked += n
        return [{"x": 0.5, "n": 1 + (os.path.exists(CHANGED) and number == self.asked - 1)}
                for number in range(self.asked - n, self.asked)]
    def tell(self, trial, told): ...
    def report(self, trial, step, value):
        return True
"""


def test_a_strategy_of_the_users_is_asked_again_by_the_program(tmp_path):
    what = spec("mine:Mine", trials=6)
    (tmp_path / "code").mkdir()
    changed = tmp_path / "changed"
    (tmp_path / "code" / "mine.py").write_text(f"CHANGED = {str(changed)!r}\n{CODE}")
    (tmp_path / names.FOLDER).mkdir()
    contract.write_whole(tmp_path / names.SPEC, contract.to_json(what))
    assert "does not exist: the search has no trial so far" in ask(tmp_path)["fault"]
    sys.path.append(str(tmp_path / "code"))
    try:
        run(tmp_path / names.TRIALS, what)
    finally:
        sys.path.remove(str(tmp_path / "code"))
    assert ask(tmp_path)["value"]["same"] is True
    changed.touch()
    assert ask(tmp_path)["value"]["differs"]["recorded"]["point"] == {"x": 0.5, "n": 1}
    (tmp_path / "code" / "mine.py").unlink()
    assert "No module named 'mine'" in ask(tmp_path)["fault"]
