"""Bounded staleness: how far a learner may be ahead of the others.

Each learner counts its pushes: its clock. (Ho et al., More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server, 2013, section 2.) Clocks of other nodes come with the weights
from the primary: only the smallest, which may have advanced since.
"""

from __future__ import annotations

from psrv.push.waiting import SHORT_NAPS_S, WaitPolicy, names
from psrv.shard.format import NEVER
from psrv.shard.membership import Member
from psrv.shard.shard import Shard


class StalenessBound:
    """A learner's clock, on the first of its shards; it starts at the smallest of the others.

    Args:
        shard: Not entered yet: nobody may wait for a clock that is still 0.
        staleness: How many pushes it may be ahead of the slowest; None: any number.
        wait_policy: How long it waits before it warns.
    """

    def __init__(self, shard: Shard, staleness: int | None, wait_policy: WaitPolicy) -> None:
        self._shard = shard
        self._wait_policy = wait_policy
        self._staleness = staleness
        shard.members.remove_dead()
        slowest = self._slowest()
        self.pushes = 0 if slowest == NEVER else slowest
        """This learner's clock."""
        self._show()

    def pushed(self) -> None:
        """Count a push."""
        self.pushes += 1
        self._show()

    def wait(self) -> float:
        """Wait until this learner is within the bound; return the seconds that it took."""
        if self._staleness is None:
            return 0.0
        self._catch_up(self._staleness)
        if not self._ahead():
            return 0.0
        wait = self._wait_policy.begin(SHORT_NAPS_S)
        while self._ahead():
            if wait.nap():
                self._shard.members.remove_dead()
                late_here = self._late_here()
                if late_here or self._ahead():  # or the last one has just left
                    wait.look(self._names, may_be_gone=not late_here)
        return wait.waited_s

    def _catch_up(self, staleness: int) -> None:
        """Advance this clock to that of other nodes, if they have not waited for this learner.

        A learner that waits for this one is at most one push beyond the bound. One that is further
        ahead did not know of this learner: it joined when it knew nobody, or its node had no
        connection. The largest clock decides, not the smallest: other nodes may have come back
        together with this one.
        """
        members = self._shard.members
        proxies = set(members.proxies().values())
        clocks = [members.clock(m.slot) for m in members.all() if m.slot in proxies]
        known = (clock for clock in clocks if clock != NEVER)  # see Membership.furthest
        furthest = max([*known, self._shard.furthest_elsewhere])
        if furthest - self.pushes > staleness + 1:
            self.pushes = furthest
            self._show()

    def _ahead(self) -> bool:
        assert self._staleness is not None
        return self.pushes - self._slowest() > self._staleness

    def _names(self) -> str:
        """Return this node's learners that are too far behind, in words."""
        return names(sum({member.mask for member in self._late_here()}))

    def _late_here(self) -> list[Member]:
        """Return this node's learners that are the slowest of all."""
        members, least = self._shard.members, self._slowest()
        proxies = members.proxies().values()
        return [
            member
            for member in members.all()
            if member.slot not in proxies and members.clock(member.slot) == least
        ]

    def _slowest(self) -> int:
        others = self._shard.members.slowest(excluding=self._shard.slot)
        return min(others, self._shard.elsewhere)

    def _show(self) -> None:
        self._shard.members.set_clock(self._shard.slot, self.pushes)
