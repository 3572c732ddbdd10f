"""Whether the learners' snapshots fit into what their node and their cgroups have left of memory.

Those of a node take theirs at the same time, so they say what they want and decide together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_LARGEST_PART = 0.8
"""Of the memory that is left, what all snapshots together may take."""


@dataclass(frozen=True)
class MemoryRequest:
    """What one learner wants."""

    more_bytes: int
    left_bytes: dict[str, int] = field(default_factory=dict)
    """Of each limit that it is under. Learners under the same limit have the same name for it."""


def have_room(requests: Sequence[MemoryRequest]) -> list[bool]:
    """Return of each learner whether there is room for what it wants."""
    wanted: Counter[str] = Counter()
    left: dict[str, int] = {}
    for wish in requests:
        for name, left_bytes in wish.left_bytes.items():
            wanted[name] += wish.more_bytes
            left[name] = min(left_bytes, left.get(name, left_bytes))
    full = {name for name in left if wanted[name] > _LARGEST_PART * left[name]}
    return [wish.more_bytes == 0 or not full & wish.left_bytes.keys() for wish in requests]
