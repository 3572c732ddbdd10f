"""A strategy of the user's that goes wrong is a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlctl.contract import search as files
from search.model.strategy import CheckedStrategy, StrategyError
from search.strategies import Trial, TrialResult

STRATEGIES = """
class Plain:
    def __init__(self, space, seed, answer="{'x': (1, 2)}"):
        self.answer = answer

    def ask(self, n):
        return [eval(self.answer)] * n

    def tell(self, trial, told):
        raise KeyError("no generation 7")


class TooMany(Plain):
    def ask(self, n):
        return super().ask(n + 1)


class InitRaises:
    def __init__(self, space, seed):
        self.best = space.no_such_thing
"""


@pytest.fixture(autouse=True)
def _theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "theirs.py").write_text(STRATEGIES)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("theirs", None)


def strategy(name: str, **options: str) -> CheckedStrategy:
    space = [files.Parameter("x", "float", 0, 1)]
    return CheckedStrategy(
        files.Spec("test", space, files.Task("python"), f"theirs:{name}", options)
    )


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("InitRaises", "", "can't be made: AttributeError: "),
        ("NoSuchClass", "", "can't be made: AttributeError: "),
        ("TooMany", "{'x': 0.5}", "was asked for 3 points at most and returned 4"),
        ("Plain", "1 / 0", "can't be asked for points: ZeroDivisionError: division"),
        ("Plain", "{'x': object()}", "returned a point that can't be written"),
        ("Plain", "0.5", "returned '0.5', which is no point: a dict is one"),
    ],
)
def test_what_the_strategy_did_is_told(name, answer, said):
    with pytest.raises(StrategyError) as told:
        strategy(name, **({"answer": answer} if answer else {})).ask(3)
    assert f"the strategy theirs:{name} {said}" in str(told.value)


def test_a_strategy_needs_no_more_than_ask_and_tell():
    plain, trial = strategy("Plain"), Trial(0, {"x": 0.5})
    assert plain.ask(2) == [{"x": [1, 2]}] * 2, "as it will be read from the log"
    assert plain.report(trial, 1, 0.5), "each trial goes on"
    with pytest.raises(StrategyError, match="can't be told a result: KeyError: 'no generation 7'"):
        plain.tell(trial, TrialResult(0.5, {}))
