"""What is in the four queues, and what was counted. Pure."""

from __future__ import annotations

from search.broker.queues import PEER, Queues
from search.protocol import messages as m


def status_of(queues: Queues) -> m.StatusReply:
    """Return how many tasks are in each queue, and what was counted."""
    processing = sum(map(len, queues.held.values()))
    helper = 0
    if queues.helping_count:  # each of hundreds of thousands is looked at only where it must be
        helper = sum(1 for entry in queues.tasks.values() if entry.owner and not entry.holder)
    workers = [
        m.StatusReply.Worker(name=holder, running=len(held))
        for holder, held in queues.held.items()
        if held and not holder.startswith(PEER)
    ]
    return m.StatusReply(
        owned=len(queues.tasks) - processing - helper,
        helper=helper,
        processing=processing,
        results=len(queues.results),
        accepted=queues.counts["accepted"],
        failed=queues.counts["failed"],
        dropped=queues.counts["dropped"],
        lent=queues.counts["lent"],
        workers=workers,
    )
