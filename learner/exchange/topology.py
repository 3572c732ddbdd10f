"""The topology: which learner is on which node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from learner.errors import UserFault


@dataclass(frozen=True)
class Topology:
    """The place of one learner among all."""

    rank: int
    node_of: tuple[int, ...]
    """The node of each rank; nodes are numbered by their lowest rank."""

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return max(self.node_of) + 1

    @property
    def node(self) -> int:
        """Return this learner's node."""
        return self.node_of[self.rank]

    @property
    def local_ranks(self) -> list[int]:
        """Return the ranks of this node, in order."""
        return self.ranks_on(self.node)

    @property
    def local_rank(self) -> int:
        """Return this learner's number among those of its node."""
        return self.local_ranks.index(self.rank)

    @property
    def local_size(self) -> int:
        """Return how many learners this node has."""
        return len(self.local_ranks)

    @property
    def mode(self) -> str:
        """Return `<ranks per node>x<nodes>`, or the ranks of each node where they differ: `2+1`."""
        sizes = [len(self.ranks_on(node)) for node in range(self.nodes)]
        if len(set(sizes)) == 1:
            return f"{sizes[0]}x{len(sizes)}"
        return "+".join(str(size) for size in sizes)

    def ranks_on(self, node: int) -> list[int]:
        """Return the ranks of a node, in order."""
        return [rank for rank, where in enumerate(self.node_of) if where == node]


def make_topology(rank: int, hosts: Sequence[object]) -> Topology:
    """Return the topology for `rank`, given a value per rank that only ranks of one node share."""
    numbers: dict[object, int] = {}
    return Topology(rank, tuple(numbers.setdefault(host, len(numbers)) for host in hosts))


def check_mode(mode: str, topology: Topology) -> None:
    """Check the topology that was asked for against the one that was found.

    Raises:
        UserFault: They differ (the message has both), or `mode` is not `auto` or of the form `4x2`
            or `2+1`.
    """
    if mode == "auto" or mode == topology.mode:
        return
    if not re.fullmatch(r"\d+x\d+|\d+(\+\d+)*", mode):
        raise UserFault(
            f"mode is {mode!r}",
            hint="it is 'auto', or learners per node x nodes: '4x2'; or those of each node: '2+1'",
        )
    raise UserFault(
        f"mode is {mode}, but the launcher has started {topology.mode} (learners per node x nodes)",
        hint="start as many as the mode says, or let mode='auto' find it",
    )
