"""The header of a shard: the words that concern the whole shard."""

from __future__ import annotations

from psrv.shard.format import ELSEWHERE, EXPECTED, FURTHEST, RATE, REFRESHED, WANTED


class ShardHeader:
    """The header words that change, as one process sees them."""

    _words: memoryview[int]
    """The first part of the file, as integers."""
    _reals: memoryview[float]
    """The same memory as floats."""

    @property
    def expected(self) -> int:
        """How many learners have to join before the first round; 0 if nobody has said.

        It is 1 once they have: a learner that comes again waits for nobody.
        """
        return self._words[EXPECTED]

    @expected.setter
    def expected(self, learners: int) -> None:
        self._words[EXPECTED] = learners

    def expect(self, learners: int) -> None:
        """Lower the number of learners that the first round waits for, to 1 at least."""
        self.expected = min(self.expected, max(1, learners))

    @property
    def rate(self) -> float:
        """The newest learning rate of this node's learners; not in rounds, which have their own."""
        return self._reals[RATE]

    @rate.setter
    def rate(self, rate: float) -> None:
        self._reals[RATE] = rate

    @property
    def elsewhere(self) -> int:
        """On a replica, the smallest clock of other nodes' learners, as the primary told it last.

        In rounds: the first round that this node takes part in.
        """
        return self._words[ELSEWHERE]

    @elsewhere.setter
    def elsewhere(self, clock: int) -> None:
        self._words[ELSEWHERE] = clock

    @property
    def furthest_elsewhere(self) -> int:
        """On a replica, the largest clock of other nodes' learners; not in rounds."""
        return self._words[FURTHEST]

    @furthest_elsewhere.setter
    def furthest_elsewhere(self, clock: int) -> None:
        self._words[FURTHEST] = clock

    @property
    def refresh_wanted(self) -> int:
        """How often a learner has wanted the primary's newest weights in a replica; a counter."""
        return self._words[WANTED]

    @refresh_wanted.setter
    def refresh_wanted(self, count: int) -> None:
        self._words[WANTED] = count

    @property
    def refreshed(self) -> int:
        """The value that `refresh_wanted` had when the newest complete refresh began."""
        return self._words[REFRESHED]

    @refreshed.setter
    def refreshed(self, count: int) -> None:
        self._words[REFRESHED] = count
