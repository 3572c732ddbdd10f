"""Optuna's samplers, in a process of their own."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace

import pytest

from dlctl.contract.search import Budget, Parameter, Spec, Task
from search.model.log import TrialLog
from search.model.state import Ended, Search
from search.model.strategy import PrefetchedStrategy, StrategyError, open_strategy
from search.strategies import SAMPLERS

SPACE = [
    Parameter("x", "float", 0.0, 1.0),
    Parameter("rate", "float", 1e-4, 1.0, log=True),
    Parameter("n", "int", 1, 9),
    Parameter("shape", "choice", choices=["a", "b"]),
]
# CMA-ES and the Gaussian process look at numbers only, or take long for each choice.
NUMBERS = SPACE[:3]


def spec(sampler, trials=30, **more):
    space = NUMBERS if sampler in ("cmaes", "gp") else SPACE
    return Spec("s", space, Task("python"), sampler, {}, metric="loss", seed=3,
                budget=Budget(trials), **more)  # fmt: skip


def height(point):
    return (point["x"] - 0.3) ** 2 + abs(point["n"] - 4) / 10 + (point.get("shape") == "b")


def run(search, most=1000):
    """Let four trials be outstanding; end the oldest."""
    for _ in range(most):
        if search.is_done():
            break
        while n := search.wanted(4):
            search.ask(n)
        number = min(search.outstanding)
        point = search.trials[number].point
        search.end(search.outstanding[number], Ended("SUCCEEDED", {"loss": height(point)}))
    return [trial.point for trial in search.trials]


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:

        def open_search(path, what):
            strategy = stack.enter_context(open_strategy(what))
            assert isinstance(strategy, PrefetchedStrategy)
            return Search(what, strategy, TrialLog(path / "trials.jsonl"))

        yield open_search


@pytest.mark.first("tpe", "nsga2")
@pytest.mark.parametrize("sampler", [
    pytest.param(sampler, marks=pytest.mark.long if sampler == "gp" else ()) for sampler in SAMPLERS
])  # fmt: skip
def test_a_sampler_that_dies_goes_on_where_it_was(tmp_path, opened, sampler):
    what = spec(sampler, 16)
    lives = opened(tmp_path, what)
    run(lives, 7)
    (tmp_path / "again").mkdir()
    shutil.copy(tmp_path / "trials.jsonl", tmp_path / "again")
    again = opened(tmp_path / "again", what)
    points = run(lives)
    assert run(again) == points
    assert len(points) == 16 and len({repr(point) for point in points}) > 12


def test_what_it_is_told_leads_to_better_points(tmp_path, opened):
    points = run(opened(tmp_path, spec("tpe", 60)))
    first, last = ([height(p) for p in part] for part in (points[:20], points[-20:]))
    assert sum(last) / 20 < sum(first) / 20 / 2


def test_an_option_that_a_sampler_lacks_is_refused_here():
    what = replace(spec("tpe"), options={"populations": 3})
    with pytest.raises(StrategyError, match="the strategy tpe: .*populations"), open_strategy(what):
        pass
