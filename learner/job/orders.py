"""Orders of people while the learners train, as learner 0 finds them in `control/`.

An order takes effect at the end of a step. Its answer keeps which step that was, so that an attempt
that repeats the step obeys at the same one.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from dlctl import contract
from dlctl.contract import ContractError, Order, OrderAnswer, to_json
from learner.job.directives import is_superseded

POLL_S = 1.0
_NAME = re.compile(r"order-(\d+)\.json")


class Orders:
    """The orders that have not taken effect yet; only learner 0 has one of these.

    Looking costs one read of a small folder, at most once in `POLL_S`.
    """

    def __init__(
        self, job_dir: Path, attempt: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job_dir = job_dir
        self._attempt = attempt
        self._clock = clock
        self._look_at = -float("inf")
        self._known: dict[int, tuple[Order, OrderAnswer | None]] = {}

    def due(self, obeyed: int, step: int) -> int:
        """Return the number of the newest order that takes effect after this step.

        Args:
            obeyed: the newest order that took effect before.
        """
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + POLL_S
            self._look(obeyed)
        number = obeyed
        while (found := self._known.get(number + 1)) is not None:
            if found[1] is not None and found[1].step > step:
                break  # it took effect later, in an attempt whose steps are repeated now
            number += 1
        return number

    def between(self, obeyed: int, newest: int) -> dict[int, Order]:
        """Return the orders after `obeyed`, up to `newest`, by number."""
        return {number: self._known[number][0] for number in range(obeyed + 1, newest + 1)}

    def answer(self, number: int, step: int, problem: str) -> None:
        """Keep when an order took effect, for people and for later attempts."""
        _, before = self._known.pop(number)
        if before is None and not is_superseded(self._job_dir, self._attempt):
            path = self._job_dir / contract.order_answer(number)
            with contextlib.suppress(OSError):  # a full disk
                contract.write_whole(path, to_json(OrderAnswer(self._attempt, step, problem)))

    def _look(self, obeyed: int) -> None:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(self._job_dir / contract.CONTROL)  # noqa: PTH208
        for match in filter(None, map(_NAME.fullmatch, names)):
            number = int(match[1])
            if number <= obeyed or number in self._known:
                continue
            # A file that can't be read yet is still being written: it is read next time.
            with contextlib.suppress(OSError, ContractError):
                order = contract.read_record(Order, self._job_dir / contract.order_file(number))
                path = self._job_dir / contract.order_answer(number)
                if order is not None:
                    self._known[number] = order, contract.read_record(OrderAnswer, path)
