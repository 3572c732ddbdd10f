"""A task that a broker keeps, until it has a result."""

from __future__ import annotations

from dataclasses import dataclass, field

from search.broker.shapes import Shape
from search.protocol import messages as m


@dataclass(slots=True, eq=False)
class Entry:
    """A task that has no result yet."""

    task: m.Task
    owner: str
    """The broker that lent it; empty: this one owns it."""
    owner_lease: int = 0
    lease_id: int = 0
    """The current or last one."""
    holder: str = ""
    """Who has it under the lease; empty: it waits."""
    until: float = 0.0
    withdrawn: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        self.shape = Shape.of(self.task)

    @property
    def priority(self) -> int:
        """Higher ones go first."""
        return self.task.priority

    @property
    def cost(self) -> float:
        """How much of a turn it takes."""
        return float(max(1, self.shape.cpus))
