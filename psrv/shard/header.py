"""What is said of a whole shard, in the first words of its file."""

from __future__ import annotations

from psrv.shard.format import ELSEWHERE, EXPECTED, FURTHEST, RATE, REFRESHED, WANTED


class ShardHeader:
    """The words that change, as one process sees them."""

    _words: memoryview[int]
    """The file's first part, as whole numbers."""
    _reals: memoryview[float]
    """The same as real ones."""

    @property
    def expected(self) -> int:
        """How many learners are to join before the first round; 0: nobody has said.

        1 once they have: who comes again later waits for nobody.
        """
        return self._words[EXPECTED]

    @expected.setter
    def expected(self, learners: int) -> None:
        self._words[EXPECTED] = learners

    def expect(self, learners: int) -> None:
        """Wait for no more than so many before the first round; 1 at least, who waits for none."""
        self.expected = min(self.expected, max(1, learners))

    @property
    def rate(self) -> float:
        """The newest learning rate of this node's learners; in rounds each has its own."""
        return self._reals[RATE]

    @rate.setter
    def rate(self, rate: float) -> None:
        self._reals[RATE] = rate

    @property
    def elsewhere(self) -> int:
        """What a relay's server was told last: the smallest clock of other nodes' learners.

        In rounds the first one that this node takes part in.
        """
        return self._words[ELSEWHERE]

    @elsewhere.setter
    def elsewhere(self, clock: int) -> None:
        self._words[ELSEWHERE] = clock

    @property
    def furthest_elsewhere(self) -> int:
        """The largest clock that it was told of with that; not in rounds."""
        return self._words[FURTHEST]

    @furthest_elsewhere.setter
    def furthest_elsewhere(self, clock: int) -> None:
        self._words[FURTHEST] = clock

    @property
    def refresh_wanted(self) -> int:
        """How often a learner has wanted the home's newest weights in a relay; it counts up."""
        return self._words[WANTED]

    @refresh_wanted.setter
    def refresh_wanted(self, count: int) -> None:
        self._words[WANTED] = count

    @property
    def refreshed(self) -> int:
        """What `refresh_wanted` was when all blocks were last asked for, and have come since."""
        return self._words[REFRESHED]

    @refreshed.setter
    def refreshed(self, count: int) -> None:
        self._words[REFRESHED] = count
