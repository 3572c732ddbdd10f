"""Calls a strategy, which may be the user's: what it does wrong ends the search with a sentence.

A model that is started again would ask the same strategy the same, and fail in the same way.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from dlctl.contract.search import Spec
from search.errors import SearchError
from search.strategies import Point, Proposal, Strategy, Told, Trial, make_strategy

_HINT = "`dlctl search logs` shows what the model printed"
T = TypeVar("T")


class StrategyError(SearchError):
    """The strategy raised an exception, or answered what is no answer."""


class Guarded:
    """A strategy whose exceptions are sentences.

    Raises:
        StrategyError: there is none of this name, it does not know one of the options, its module
            or Optuna can't be imported, or its constructor raised an exception.
    """

    def __init__(self, spec: Spec) -> None:
        self._name = spec.strategy
        try:
            self._strategy: Strategy = make_strategy(spec)
        except (ValueError, ImportError) as error:
            raise StrategyError(str(error)) from error
        except Exception as error:
            raise self._raised("be made", error) from error

    def ask(self, n: int) -> list[Point | Proposal]:
        """Return at most n points, as they will be read from the log.

        Raises:
            StrategyError: The strategy raised an exception, or did not return that.
        """
        made = self._call("be asked for points", lambda: list(self._strategy.ask(n)))
        if len(made) > n:
            raise self._wrong(f"was asked for {n} points at most and returned {len(made)}")
        return [self._checked(each) for each in made]

    def tell(self, trial: Trial, told: Told) -> None:
        """Pass a result on.

        Raises:
            StrategyError: The strategy raised an exception.
        """
        self._call("be told a result", lambda: self._strategy.tell(trial, told))

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Return whether a trial goes on; a class without `report` lets each one go on.

        Raises:
            StrategyError: The strategy raised an exception.
        """
        if not hasattr(self._strategy, "report"):
            return True
        return self._call(
            "be told a report", lambda: bool(self._strategy.report(trial, step, value))
        )

    def _checked(self, each: Point | Proposal) -> Point | Proposal:
        point = each.point if isinstance(each, Proposal) else each
        try:
            read = json.loads(json.dumps(point, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise self._wrong(f"returned a point that can't be written as JSON: {error}") from None
        if not isinstance(read, dict):
            raise self._wrong(f"returned {str(point)[:80]!r}, which is no point: a dict is one")
        return Proposal(read, each.parent) if isinstance(each, Proposal) else read

    def _call(self, what: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise self._raised(what, error) from error

    def _raised(self, what: str, error: Exception) -> StrategyError:
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        return self._wrong(f"can't {what}: {type(error).__name__}: {error}"[:1000])

    def _wrong(self, what: str) -> StrategyError:
        return StrategyError(f"the strategy {self._name} {what}", hint=_HINT)
