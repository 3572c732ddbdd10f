"""The GPUs of a worker's job, divided among its tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from search.errors import SearchError

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""By one of these a scheduler says which GPUs a job has: numbers, or names as `GPU-3f2a`."""


class Gpus:
    """Knows which GPUs are free.

    Args:
        count: How many the job was given.
        environment: Where the scheduler says which.

    Raises:
        SearchError: The scheduler gave fewer.
    """

    def __init__(self, count: int, environment: Mapping[str, str] = os.environ) -> None:
        self._variable = next((v for v in _VARIABLES if environment.get(v)), _VARIABLES[0])
        named = [name for name in environment.get(self._variable, "").split(",") if name.strip()]
        if named and len(named) < count:
            raise SearchError(
                f"the worker was to have {count} GPUs, but {self._variable} names {len(named)}",
                hint="look what the scheduler has given the job: scontrol show job -d JOB_ID",
            )
        self._all = tuple(named[:count]) or tuple(map(str, range(count)))

    def choose(
        self, count: int, taken: Iterable[tuple[str, ...]], last: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return GPUs that no task has; the last ones of the slot if they will do."""
        used = {name for some in taken for name in some}
        if len(last) == count and used.isdisjoint(last):
            return last
        return tuple(name for name in self._all if name not in used)[:count]

    def environment(self, chosen: tuple[str, ...]) -> dict[str, str]:
        """Return what shows a task its GPUs and no others."""
        return {self._variable: ",".join(chosen)} if self._all else {}
