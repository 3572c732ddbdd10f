"""The results queue, and what a broker's log holds: a kind of record for each kind of change.

Results wait for models, or for the brokers that lent the tasks. Pure.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from search.broker.shapes import Entry
from search.protocol import messages as m
from search.protocol.channels import first_fitting

Record = Callable[[int, bytes], None]


class Mailbox:
    """The results of one model, until it says that it has them; and what its tasks report.

    Each result has a number; the numbers go on over all incarnations.
    """

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest result."""
        self.cursor = 0
        """The model has the results up to this one."""
        self.accepted: deque[m.Accepted] = deque()
        """The results after the cursor."""
        self.value_bytes = 0
        """How long the values of these results are."""
        self._reports: dict[str, m.Report] = {}

    def add(self, accepted: m.Accepted) -> int:
        """Add a result; return its number."""
        self.accepted.append(accepted)
        self.value_bytes += len(accepted.result.value)
        self.last += 1
        return self.last

    def forget(self, cursor: int) -> list[str]:
        """Forget the results up to a number; return the ids of their tasks."""
        gone = []
        while self.cursor < min(cursor, self.last):
            result = self.accepted.popleft().result
            self.value_bytes -= len(result.value)
            gone.append(result.task_id)
            self.cursor += 1
        return gone

    def report(self, entry: Entry) -> None:
        """Keep the newest values of what a task reports, beyond its end."""
        self._reports[entry.task.id] = entry.report()

    def take_reports(self) -> list[m.Report]:
        """Return the reports since the last call."""
        taken = list(self._reports.values())
        self._reports.clear()
        return taken

    @property
    def has_reports(self) -> bool:
        """Return whether something was reported since they were last taken."""
        return bool(self._reports)

    def read(self, most: int, most_bytes: int) -> list[m.Accepted]:
        """Return the first results after the cursor: at least one if there is one."""
        return first_fitting(
            self.accepted, lambda each: len(each.result.value) + 256, most, most_bytes
        )


class Results:
    """The results of models and of other brokers."""

    def __init__(self, record: Record, counts: Counter[str]) -> None:
        self._record, self._counts = record, counts
        self.mailboxes: dict[str, Mailbox] = {}
        self.done: set[str] = set()
        """Tasks whose results their models do not have yet."""
        self.helped: dict[str, dict[str, m.Accepted]] = {}
        """Owner → results that go back to it."""

    def __len__(self) -> int:
        """Return how many results wait."""
        return sum(len(box.accepted) for box in self.mailboxes.values()) + sum(
            map(len, self.helped.values())
        )

    @property
    def value_bytes(self) -> int:
        """Return the bytes of all values that models have not taken."""
        return sum(box.value_bytes for box in self.mailboxes.values())

    def mailbox(self, model: str) -> Mailbox:
        """Return the mailbox of a model."""
        return self.mailboxes.setdefault(model, Mailbox())

    def hear(self, entry: Entry, report: m.Report) -> None:
        """Take in a report of a task, for its model if that sent it here."""
        if entry.hear(report) and not entry.owner:
            self.mailbox(entry.task.origin).report(entry)

    def add(self, finished: Iterable[tuple[Entry, m.Result]]) -> None:
        """Take the results of tasks that are kept no longer."""
        models: dict[str, list[m.Accepted]] = {}
        owners: dict[str, list[m.Accepted]] = {}
        for entry, result in finished:
            result.ClearField("report")
            if entry.owner:
                result.lease_id = entry.owner_lease
                if entry.metrics:
                    result.report.CopyFrom(entry.report())
            accepted = m.Accepted(result=result, metrics=entry.metrics)
            self._counts["accepted"] += 1
            self._counts["failed"] += result.outcome != m.SUCCEEDED
            to, name = (owners, entry.owner) if entry.owner else (models, entry.task.origin)
            to.setdefault(name, []).append(accepted)
        for model, results in models.items():
            box = self.mailbox(model)
            for each in results:
                box.add(each)
                self.done.add(each.result.task_id)
            self._record(RESULTS, pack_results(model, results, box.last))
        for owner, results in owners.items():
            self.helped.setdefault(owner, {}).update({r.result.task_id: r for r in results})
            self._record(HELPED, pack_results(owner, results))

    def forget(self, model: str, cursor: int) -> None:
        """Forget the results that a model has."""
        box = self.mailbox(model)
        if cursor <= box.cursor:
            return
        self._record(CURSOR, m.ResultsRequest(model=model, cursor=cursor).SerializeToString())
        self.done.difference_update(box.forget(cursor))

    def given_back(self, owner: str, ids: Iterable[str]) -> None:
        """Forget results of helped tasks that their owner has."""
        results = self.helped.get(owner, {})
        gone = [task_id for task_id in ids if results.pop(task_id, None) is not None]
        if gone:
            payload = m.ReturnReply(taken=gone).SerializeToString()
            self._record(GIVEN_BACK, named(owner, payload))


TASKS = ord("T")
"""A SubmitRequest: a model's tasks."""
RESULTS = ord("R")
"""A name, and a ResultsReply: results of that model. Its cursor is the number of the last one."""
CURSOR = ord("C")
"""A ResultsRequest: the model has the results up to its cursor."""
WITHDRAWN = ord("W")
"""A CancelRequest."""
AGAIN = ord("A")
"""A SubmitRequest: the same tasks as before, with deaths and checkpoints as they are now."""
HELPED = ord("H")
"""A name, and a ResultsReply: results that belong to that broker."""
GIVEN_BACK = ord("G")
"""A name, and a ReturnReply: that broker has these results."""
COUNTS = ord("N")
"""A StatusReply: the counters so far."""

_COUNTED = ("accepted", "failed", "dropped", "lent")
_LENGTH = struct.Struct("<H")


def named(name: str, message: bytes) -> bytes:
    """Pack a name and a message."""
    encoded = name.encode()
    return _LENGTH.pack(len(encoded)) + encoded + message


def split(payload: bytes) -> tuple[str, bytes]:
    """Return the name and the message of what `named` packed."""
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return payload[_LENGTH.size : end].decode(), payload[end:]


def pack_results(name: str, accepted: Iterable[m.Accepted], last: int = 0) -> bytes:
    """Pack results of a model, or of another broker."""
    return named(name, m.ResultsReply(results=accepted, cursor=last).SerializeToString())


def pack_again(tasks: Iterable[m.Task]) -> bytes:
    """Pack the changes of tasks that wait again."""
    changed = [m.Task(id=t.id, deaths=t.deaths, checkpoint=t.checkpoint) for t in tasks]
    return m.SubmitRequest(tasks=changed).SerializeToString()


def pack_counts(counts: Mapping[str, int]) -> bytes:
    """Pack the counters."""
    reply = m.StatusReply()
    for name in _COUNTED:
        setattr(reply, name, counts.get(name, 0))
    return reply.SerializeToString()


def unpack_counts(payload: bytes) -> dict[str, int]:
    """Return what `pack_counts` packed."""
    reply = m.StatusReply.FromString(payload)
    return {name: getattr(reply, name) for name in _COUNTED}
