"""What is in the four queues, and what was counted. Pure."""

from __future__ import annotations

from search.broker.queues import PEER, Queues
from search.protocol import messages as m


def status_of(queues: Queues) -> m.StatusReply:
    """Return how many tasks are in each queue, and what was counted."""
    waiting = [entry for entry in queues.tasks.values() if not entry.holder]
    helper = sum(1 for entry in waiting if entry.owner)
    workers = [
        m.StatusReply.Worker(name=holder, running=len(held))
        for holder, held in queues.held.items()
        if held and not holder.startswith(PEER)
    ]
    return m.StatusReply(
        owned=len(waiting) - helper,
        helper=helper,
        processing=len(queues.tasks) - len(waiting),
        results=len(queues.results),
        accepted=queues.counts["accepted"],
        failed=queues.counts["failed"],
        dropped=queues.counts["dropped"],
        lent=queues.counts["lent"],
        workers=workers,
    )
