"""Whether the learners' snapshots fit into the memory that their node and cgroups have left.

The learners of a node allocate at the same time, so they share their requests and decide together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_LARGEST_PART = 0.8
"""The share of the free memory that all snapshots together may use."""


@dataclass(frozen=True)
class MemoryRequest:
    """The memory that one learner requests."""

    more_bytes: int
    left_bytes: dict[str, int] = field(default_factory=dict)
    """The bytes left under each limit that applies to the learner, by the limit's name. Learners
    under the same limit use the same name."""


def have_room(requests: Sequence[MemoryRequest]) -> list[bool]:
    """Return for each learner whether there is enough memory for its request."""
    wanted: Counter[str] = Counter()
    left: dict[str, int] = {}
    for request in requests:
        for name, left_bytes in request.left_bytes.items():
            wanted[name] += request.more_bytes
            left[name] = min(left_bytes, left.get(name, left_bytes))
    full = {name for name in left if wanted[name] > _LARGEST_PART * left[name]}
    return [each.more_bytes == 0 or not full & each.left_bytes.keys() for each in requests]
