"""Wait for a training: look again and again, less often while nothing changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.errors import TransportError
from dlctl.service.client import Filter, may_pass

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.tell import Tell

_FIRST_S, _SLOWEST_S, _SLOWER = 0.5, 5.0, 1.3
_WAY = [state for state in State if not state.final] + [State.COMPLETED]
"""The states of a training to which nothing happens, in their order."""


def looks(look: Callable[[], Record], tell: Tell, timeout_s: float | None) -> Iterator[Record]:
    """Yield what each look finds, until the time is over; a site that is silent is asked again.

    Raises:
        TransportError: to ask again would not help.
    """
    deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    pause_s, before = _FIRST_S, None
    while True:
        try:
            yield (now := look())
        except TransportError as error:
            if not may_pass(error):
                raise
            tell.warn(f"{error.message}; trying again")
        else:
            pause_s = _FIRST_S if now.state is not before else min(_SLOWEST_S, pause_s * _SLOWER)
            before = now.state
        if (left_s := deadline - time.monotonic()) <= 0:
            return
        time.sleep(min(pause_s, left_s))


def states(words: str | Collection[str] | None) -> set[State]:
    """Return the states that are waited for; of no words those in which a training has ended.

    Raises:
        Misused: a word is no state.
    """
    if not words:
        return {state for state in State if state.final}
    chosen = [words] if isinstance(words, str) else list(words)
    Filter(states=chosen)
    return {State(word.upper()) for word in chosen}


def is_there(state: State, wanted: set[State]) -> bool:
    """Return whether a training is in one of these states, or has passed one on its way."""
    passed = _WAY[: _WAY.index(state) + 1] if state in _WAY else [state]
    return not wanted.isdisjoint(passed)
