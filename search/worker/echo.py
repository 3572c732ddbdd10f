"""A slot for measurements: it answers at once, with the task's payload, in the worker itself."""

from __future__ import annotations

from search.protocol import messages as m


class EchoSlot:
    """Runs nothing."""

    was_terminated = False
    gpus: tuple[str, ...] = ()
    trouble = ""

    async def run(self, lease: m.Lease, gpus: tuple[str, ...]) -> m.Result:  # noqa: ARG002
        """Return the payload."""
        task = lease.task
        return m.Result(task_id=task.id, lease_id=lease.id, outcome=m.SUCCEEDED, value=task.payload)

    def order(self, order: m.Order, grace_s: float) -> None:
        """Do nothing: no task lasts."""

    async def close(self) -> None:
        """Do nothing: there is no process."""
