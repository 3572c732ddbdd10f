"""A snapshot of a broker's queues for its log, and the replay of a log. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from search.broker import results as stored
from search.broker.queues import NOBODY, Queues
from search.broker.shapes import Entry
from search.journal.epochs import SNAPSHOT_COMPLETE
from search.protocol import messages as m

T = TypeVar("T")
_CHUNK = 8
"""How many tasks or results are in one record: each may have dozens of megabytes."""


def snapshot(queues: Queues) -> Iterator[tuple[int, bytes]]:
    """Return records that make the same state from nothing."""
    for model, box in queues.results.mailboxes.items():
        number = box.cursor
        for some in _chunks(list(box.accepted)) or [[]]:
            number += len(some)
            yield stored.RESULTS, stored.pack_results(model, some, number)
    for owner, helped in queues.results.helped.items():
        for some in _chunks(list(helped.values())):
            yield stored.HELPED, stored.pack_results(owner, some)
    models: dict[str, list[Entry]] = {}
    for entry in queues.tasks.values():
        if not entry.owner:
            models.setdefault(entry.task.origin, []).append(entry)
    for model, entries in models.items():
        for waiting in _chunks(entries):
            request = m.SubmitRequest(model=model, tasks=[entry.task for entry in waiting])
            yield stored.TASKS, request.SerializeToString()
        ids = [entry.task.id for entry in entries if entry.withdrawn]
        if ids:
            withdrawn = m.CancelRequest(model=model, task_ids=ids)
            yield stored.WITHDRAWN, withdrawn.SerializeToString()
    yield stored.COUNTS, stored.pack_counts(queues.counts)
    yield SNAPSHOT_COMPLETE, b""


def _chunks(items: list[T]) -> list[list[T]]:
    return [items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK)]


def replay(queues: Queues, kind: int, payload: bytes) -> None:
    """Make a recorded change."""
    if kind in (stored.TASKS, stored.AGAIN):
        request = m.SubmitRequest.FromString(payload)
        for task in request.tasks:
            if kind == stored.TASKS:
                queues.adopted.append(queues.add(task))
            elif entry := queues.tasks.get(task.id):
                entry.task.deaths = task.deaths
                entry.task.checkpoint = task.checkpoint
    elif kind == stored.WITHDRAWN:
        for task_id in m.CancelRequest.FromString(payload).task_ids:
            if entry := queues.tasks.get(task_id):
                entry.withdrawn = True
    elif kind == stored.CURSOR:
        results_request = m.ResultsRequest.FromString(payload)
        queues.results.done.difference_update(
            queues.results.mailbox(results_request.model).forget(results_request.cursor)
        )
    elif kind in (stored.RESULTS, stored.HELPED):
        name, message = stored.split(payload)
        _replay_results(queues, kind, name, m.ResultsReply.FromString(message))
    elif kind == stored.GIVEN_BACK:
        name, message = stored.split(payload)
        for task_id in m.ReturnReply.FromString(message).taken:
            queues.results.helped.get(name, {}).pop(task_id, None)
    elif kind == stored.COUNTS:
        queues.counts.clear()
        queues.counts.update(stored.unpack_counts(payload))


def _replay_results(queues: Queues, kind: int, name: str, reply: m.ResultsReply) -> None:
    for accepted in reply.results:
        queues.tasks.drop(accepted.result.task_id)
        queues.counts["accepted"] += 1
        queues.counts["failed"] += accepted.result.outcome != m.SUCCEEDED
        if kind == stored.HELPED:
            queues.results.helped.setdefault(name, {})[accepted.result.task_id] = accepted
    if kind == stored.RESULTS:
        box = queues.results.mailbox(name)
        queues.results.done.update(accepted.result.task_id for accepted in reply.results)
        if not box.last:  # a snapshot: earlier ones were forgotten
            box.last = box.cursor = reply.cursor - len(reply.results)
        for accepted in reply.results:
            box.add(accepted)


def begin(queues: Queues, now: float, grace_s: float) -> None:
    """Begin after a replay: for a moment adopted tasks go only to the workers that run them.

    Withdrawn tasks that nobody claims by then lapse as CANCELLED.
    """
    queues.adopted_until = now + grace_s
    for entry in queues.tasks.values():
        if entry.withdrawn:
            queues.hold(entry, NOBODY, now)
            entry.until = now + grace_s
            queues.watch(entry)
