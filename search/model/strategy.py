"""Calls strategies: those that take long to answer ahead, in a process of their own.

What a strategy, which may be the user's, does wrong ends the search with a sentence: a model that
is started again would ask it the same, and fail in the same way. The process is this module as a
program. It reads JSON lines, the specification first, and answers each request for a point by a
line: the point, or a text that says why there is none.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar, cast

from dlctl import contract
from dlctl.contract.ground.processes import end_child
from dlctl.contract.search import Spec
from search.errors import SearchError
from search.strategies import SAMPLERS, Point, Proposal, Strategy, Trial, TrialResult, make_strategy

_AHEAD = 1
"""How many points wait until they are asked for. Each misses the results of the last moments."""


@contextlib.contextmanager
def open_strategy(spec: Spec) -> Iterator[Strategy]:
    """Yield a search's strategy; its process, if it has one, ends afterwards.

    Raises:
        StrategyError: it can't be made; the text says why.
    """
    if spec.strategy not in SAMPLERS:
        yield CheckedStrategy(spec)
        return
    with contextlib.closing(PrefetchedStrategy(spec)) as strategy:
        yield strategy


class PrefetchedStrategy(Strategy):
    """A strategy in another process, which makes the next point while trials run.

    What it answers depends on the order of the calls alone, as of any strategy: a point is made
    after exactly those results that had been told when the point before it was taken.

    Raises:
        StrategyError: the strategy can't be made; the text says why.
    """

    def __init__(self, spec: Spec) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._due = 0
        self._send(json.loads(contract.to_json(spec)))
        if problem := self._receive():
            self.close()
            raise StrategyError(problem)
        self._request(_AHEAD)

    def ask(self, n: int) -> list[Point]:
        """Return n points, and let the next one be made.

        Raises:
            StrategyError: the strategy raised an exception.
        """
        self._request(n - self._due)
        points = [self._point() for _ in range(n)]
        self._due -= n
        self._request(_AHEAD - self._due)
        return points

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Pass a result on."""
        self._send([asdict(trial), asdict(result)])

    def close(self) -> None:
        """End the process."""
        self._input.close()
        self._output.close()
        end_child(self._process)

    def _request(self, n: int) -> None:
        for _ in range(n):
            self._send(None)
            self._due += 1

    def _point(self) -> Point:
        if isinstance(answer := self._receive(), str):
            raise StrategyError(answer)
        return cast(Point, answer)

    def _send(self, what: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # its last answer says why
            self._input.write(json.dumps(what) + "\n")
            self._input.flush()

    def _receive(self) -> Any:
        if not (line := self._output.readline()):
            raise OSError(f"the strategy's process ended with exit code {self._process.wait()}")
        return json.loads(line)


def main() -> None:
    """Answer until the other side is gone."""
    lines, answers = sys.stdin, sys.stdout
    sys.stdout = sys.stderr  # what the strategy prints is no answer
    spec = contract.from_json(Spec, next(lines).encode())
    try:
        strategy = CheckedStrategy(spec)
        problem = ""
    except StrategyError as error:
        problem = str(error)
    print(json.dumps(problem), file=answers, flush=True)
    if problem:
        return
    try:
        for line in lines:
            if (request := json.loads(line)) is None:
                print(json.dumps(strategy.ask(1)[0]), file=answers, flush=True)
            else:
                trial, result = request
                strategy.tell(Trial(**trial), TrialResult(**result))
    except StrategyError as error:
        print(json.dumps(str(error)), file=answers, flush=True)


_HINT = "`dlctl logs` shows what the model printed"
T = TypeVar("T")


class StrategyError(SearchError):
    """The strategy raised an exception, or answered what is no answer."""


class CheckedStrategy:
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

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Pass a result on.

        Raises:
            StrategyError: The strategy raised an exception.
        """
        self._call("be told a result", lambda: self._strategy.tell(trial, result))

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


if __name__ == "__main__":
    main()
