"""The header of a shard: the words that concern the whole shard."""

from __future__ import annotations

from psrv.shard.format import ELSEWHERE, EXPECTED, FURTHEST, RATE, REFRESHED, WANTED


class _Word:
    """An integer of the header, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, header: ShardHeader, _: object) -> int:
        return header._words[self._place]

    def __set__(self, header: ShardHeader, value: int) -> None:
        header._words[self._place] = value


class ShardHeader:
    """The header words that change, as one process sees them."""

    _words: memoryview[int]
    """The first part of the file, as integers."""
    _reals: memoryview[float]
    """The same memory as floats."""
    expected = _Word(EXPECTED)
    """How many learners have to join before the first round; 0 if nobody has said. It is 1 once
    they have: a learner that comes again waits for nobody."""
    elsewhere = _Word(ELSEWHERE)
    """On a replica, the smallest clock of other nodes' learners, as the primary told it last. In
    rounds: the first round that this node takes part in."""
    furthest_elsewhere = _Word(FURTHEST)
    """On a replica, the largest clock of other nodes' learners; not in rounds."""
    refresh_wanted = _Word(WANTED)
    """How often a learner has wanted the primary's newest weights in a replica; a counter."""
    refreshed = _Word(REFRESHED)
    """The value that `refresh_wanted` had when the newest complete refresh began."""

    def expect(self, learners: int) -> None:
        """Lower the number of learners that the first round waits for, to 1 at least."""
        self.expected = min(self.expected, max(1, learners))

    @property
    def rate(self) -> float:
        """The newest learning rate on this node. Rounds keep their own (`round_rate`)."""
        return self._reals[RATE]

    @rate.setter
    def rate(self, rate: float) -> None:
        self._reals[RATE] = rate
