"""Strategies that take long to answer: asked ahead, in a process of their own.

The process is this module as a program. It reads JSON lines, the specification first, and answers
each request for a point by a line: the point, or a text that says why there is none.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, cast

from dlctl import contract
from dlctl.contract.ground.processes import end_child
from dlctl.contract.search import Spec
from search.model.guard import Guarded, StrategyError
from search.strategies import SAMPLERS, Point, Strategy, Told, Trial

_AHEAD = 1
"""How many points wait until they are asked for. Each misses the results of the last moments."""


@contextlib.contextmanager
def open_strategy(spec: Spec) -> Iterator[Strategy]:
    """Yield a search's strategy; its process, if it has one, ends afterwards.

    Raises:
        StrategyError: it can't be made; the text says why.
    """
    if spec.strategy not in SAMPLERS:
        yield Guarded(spec)
        return
    with contextlib.closing(AskedAhead(spec)) as strategy:
        yield strategy


class AskedAhead:
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

    def tell(self, trial: Trial, told: Told) -> None:
        """Pass a result on."""
        self._send([asdict(trial), asdict(told)])

    def report(self, trial: Trial, step: int, value: float) -> bool:  # noqa: ARG002
        """Return True."""
        return True

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
        strategy = Guarded(spec)
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
                trial, told = request
                strategy.tell(Trial(**trial), Told(**told))
    except StrategyError as error:
        print(json.dumps(str(error)), file=answers, flush=True)


if __name__ == "__main__":
    main()
