"""Ask several sites the same at the same time, so that a silent one delays no other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from dlctl.cli.common import opened

if TYPE_CHECKING:
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session

LIMIT_S = 10.0
"""How long the sites have for their answers, all at the same time."""
Answer = TypeVar("Answer")


def ask_all(
    names: Iterable[str], ask: Callable[[Session], Answer]
) -> Iterator[tuple[str, Answer | DlctlError]]:
    """Yield each site's name with its answer, or with the error that it ended with.

    Asks nothing at the terminal: a site that wants a password counts as one that does not answer.
    """
    from dlctl.errors import TransportTimeout

    waiting = set(names)
    answers: queue.SimpleQueue[tuple[str, Answer | DlctlError]] = queue.SimpleQueue()
    for name in waiting:
        threading.Thread(
            target=_ask, args=(name, ask, answers), name=f"dlctl-ask-{name}", daemon=True
        ).start()
    deadline = time.monotonic() + LIMIT_S
    while waiting:
        try:
            name, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            name, answer = min(waiting), TransportTimeout(f"no answer within {LIMIT_S:g} s")
        waiting.discard(name)
        yield name, answer


def _ask(
    name: str, ask: Callable[[Session], Answer],
    answers: queue.SimpleQueue[tuple[str, Answer | DlctlError]],
) -> None:  # fmt: skip
    from dlctl.errors import DlctlError

    try:
        with opened(name, may_ask=False) as session:
            answers.put((name, ask(session)))
    except DlctlError as error:
        answers.put((name, error))
