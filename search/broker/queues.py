"""The four queues of a broker: owned, helper, processing and results. Pure.

A task is in exactly one of the first three: it waits as an owned one (a model sent it), waits as a
helped one (another broker lent it), or is in processing (a worker or another broker has it under a
lease). Its result goes to its model's mailbox, or back to the broker that lent it.

A task has one valid lease: the newest that was given out. Its holder decides the result; what
comes under any other is dropped. A lease that lapsed stays the newest, and so valid, until somebody
else gets the task: if its holder returns before that, it goes on, and its death is taken back.
Leases are not in the log: of those that a former incarnation gave out, the newest that shows up is
the valid one.

Every change that must survive the broker goes to `record`, before the method returns. `replay`
makes the same changes again in another object.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable

from dlctl.contract import search as files
from search.broker import results as stored
from search.broker.fair_queue import FairQueue
from search.broker.results import Record, Results
from search.broker.shapes import Entry, Room, Tasks
from search.protocol import messages as m

MOST_DEATHS = 3
"""A task whose worker died this often has failed."""
MOST_LEASED_BYTES = 16 << 20
"""How much payload goes into one reply, beside that of its last task."""
PEER = "broker "
"""Begins the names of holders that are brokers."""
NOBODY = "nobody"
"""Holds withdrawn tasks of a former incarnation until their workers come, or do not."""
_INCARNATION_BITS = 40


class Queues:
    """The tasks and results of one broker.

    Args:
        incarnation: The broker's; leases of different incarnations have different ids.
        lease_s: How long a lease lasts that nobody renews.
    """

    def __init__(self, incarnation: int, lease_s: float, record: Record) -> None:
        self.incarnation, self.lease_s = incarnation, lease_s
        self._record = record
        self._leases = incarnation << _INCARNATION_BITS
        self.tasks = Tasks()
        self._owned: FairQueue = FairQueue(self._waits)
        self._helper: FairQueue = FairQueue(self._waits)
        self._ahead = 0.0
        """By how much more cost owned tasks were given out than helped ones, while both waited."""
        self.adopted: list[Entry] = []
        """Tasks of a former incarnation that its workers may still run: they can go on with them
        for a moment, before anybody else gets them."""
        self.adopted_until = 0.0
        self._excused: dict[str, float] = {}
        """Worker → from when on it is no wonder that it is gone."""
        self.held: dict[str, dict[str, Entry]] = {}
        """The processing queue: holder → its tasks."""
        self._ends: list[tuple[float, int, Entry]] = []
        self._ordered = 0
        self._helping: dict[str, dict[str, Entry]] = {}
        """Owner → its tasks that are here."""
        self.counts: Counter[str] = Counter()
        self.results = Results(record, self.counts)

    # What models ask ----------------------------------------------------------------------------

    def submit(self, model: str, tasks: Iterable[m.Task], room: int) -> tuple[list[str], int]:
        """Add a model's tasks, as far as there is room; return the known ids, and how many came.

        A task that is known already counts as accepted: the model repeats a call.
        """
        known: list[str] = []
        new: list[m.Task] = []
        for task in tasks:
            if task.id not in self.tasks and task.id not in self.results.done:
                if len(new) >= room:
                    continue
                task.origin = model
                new.append(task)
                self._queue(self.add(task))
            known.append(task.id)
        if new:
            request = m.SubmitRequest(model=model, tasks=new)
            self._record(stored.TASKS, request.SerializeToString())
        return known, len(new)

    def cancel(self, model: str, ids: Iterable[str], *, waiting_only: bool = False) -> None:
        """Withdraw tasks: those that wait get the result CANCELLED, those that run are stopped.

        Args:
            waiting_only: Leave those alone that a worker or another broker has.
        """
        entries = [e for i in ids if (e := self.tasks.get(i)) and not e.owner and not e.withdrawn]
        mine = [e for e in entries if e.task.origin == model and not (waiting_only and e.holder)]
        if not mine:
            return
        request = m.CancelRequest(model=model, task_ids=[entry.task.id for entry in mine])
        self._record(stored.WITHDRAWN, request.SerializeToString())
        for entry in mine:
            entry.withdrawn = True
        self._finish([self._ended(e, m.CANCELLED) for e in mine if not e.holder])

    @property
    def outstanding(self) -> int:
        """Return the number of tasks and results of models that are kept."""
        return len(self.tasks) + len(self.results.done)

    # What workers and other brokers ask ---------------------------------------------------------

    def lease(
        self, holder: str, want: int, room: Room, now: float, *, lend: bool = False
    ) -> list[m.Lease]:
        """Give a holder up to `want` tasks for which it has room.

        Args:
            lend: The holder is another broker: it gets owned tasks alone, so that no task goes
                further than one broker away.
        """
        found: list[m.Lease] = []
        size = 0
        while len(found) < want and size < MOST_LEASED_BYTES and (entry := self._next(room, lend)):
            size += len(entry.task.payload)
            room.take(entry.shape)
            self._leases += 1
            entry.lease_id, entry.counted = self._leases, False
            entry.begun = not room.ahead
            self.hold(entry, holder, now)
            found.append(m.Lease(task=entry.task, id=entry.lease_id, duration_s=self.lease_s))
        if lend and found:
            self.counts["lent"] += len(found)
            self._note_counts()
        return found

    def accept(self, holder: str, results: Iterable[m.Result], now: float) -> list[str]:
        """Take results; return the ids of their tasks: the holder may forget them all."""
        finished: list[tuple[Entry, m.Result]] = []
        again: list[Entry] = []
        task_ids: list[str] = []
        dropped = 0
        for result in results:
            task_ids.append(result.task_id)
            entry = self._current(holder, result.task_id, result.lease_id, now)
            if entry is None:
                dropped += 1
                continue
            self._release(entry)
            self.results.hear(entry, result.report)
            entry.task.deaths = max(entry.task.deaths, result.deaths)
            if result.outcome != m.HANDED_BACK or entry.owner:
                result.deaths = entry.task.deaths
                finished.append((entry, result))
            elif entry.withdrawn:
                finished.append(self._ended(entry, m.CANCELLED))
            else:
                entry.task.checkpoint = result.checkpoint or entry.task.checkpoint
                self._queue(entry, first=True)
                again.append(entry)
                continue
            self.tasks.drop(entry.task.id)  # a second result of the same call is dropped
        self._finish(finished)
        self._note_again(again)
        if dropped:
            self.counts["dropped"] += dropped
            self._note_counts()
        return task_ids

    def renew(self, holder: str, reports: Iterable[m.Report], now: float) -> dict[str, m.Order]:
        """Go on with leases; return the orders for tasks that are not simply to go on."""
        orders: dict[str, m.Order] = {}
        for report in reports:
            entry = self._current(holder, report.task_id, report.lease_id, now)
            if entry is None:
                orders[report.task_id] = m.STOP
                continue
            self.hold(entry, holder, now)
            self.results.hear(entry, report)
            if holder.startswith(PEER) and entry.task.deaths != report.deaths:
                entry.task.deaths = report.deaths
                self._note_again([entry])
            if entry.withdrawn:
                orders[report.task_id] = m.STOP
        return orders

    def lose(self, holder: str, now: float, grace_s: float) -> None:
        """Note that a holder's connection broke: its leases lapse unless it is soon back."""
        for entry in self.held.get(holder, {}).values():
            entry.until = min(entry.until, now + grace_s)
            self.watch(entry)

    def excuse(self, holder: str, from_s: float | None) -> None:
        """Note when a worker will be gone, or is leaving: then its end is no death of its tasks."""
        if from_s is None:
            self._excused.pop(holder, None)
        else:
            self._excused[holder] = from_s

    def lapse(self, now: float) -> int:
        """End the leases that nobody renewed; return how many tasks wait again."""
        if self.adopted and now >= self.adopted_until:
            for entry in self.adopted:
                if self._waits(entry):
                    self._distrust(entry)
                    self._queue(entry)
            self.adopted.clear()
            return 1
        again: list[Entry] = []
        dead: list[tuple[Entry, m.Result]] = []
        while self._ends and self._ends[0][0] <= now:
            _, _, entry = heapq.heappop(self._ends)
            if not entry.holder or entry.task.id not in self.tasks:
                continue
            if entry.until > now:
                self.watch(entry)
                continue
            holder = entry.holder
            self._release(entry)
            self._distrust(entry)
            if entry.withdrawn:
                dead.append(self._ended(entry, m.CANCELLED))
                continue
            if not holder.startswith(PEER) and now < self._excused.get(holder, math.inf):
                entry.blame()
            if entry.task.deaths >= MOST_DEATHS:
                error = f"{entry.task.deaths} workers died while they ran it, the last was {holder}"
                dead.append(self._ended(entry, m.KILLED_WORKERS, error))
                continue
            self._queue(entry, first=True)
            again.append(entry)
        self._finish(dead)
        self._note_again(again)
        return len(again)

    # Work of other brokers ----------------------------------------------------------------------

    def help(self, owner: str, leases: Iterable[m.Lease]) -> None:
        """Take tasks that another broker lent."""
        for lease in leases:
            if (known := self.tasks.get(lease.task.id)) is not None:
                if known.owner == owner and not known.withdrawn:
                    known.owner_lease = lease.id  # the owner had given up the older lease
                continue
            entry = self.add(lease.task, owner, lease.id)
            self._helping.setdefault(owner, {})[lease.task.id] = entry
            self._queue(entry)

    def helping(self, owner: str) -> list[m.Report]:
        """Return the leases of the tasks that another broker lent and that have no result yet."""
        return [entry.report() for entry in self._helping.get(owner, {}).values()]

    def drop_helped(self, owner: str, ids: Iterable[str]) -> None:
        """Stop tasks that their owner no longer wants from here."""
        for task_id in ids:
            entry = self._helping.get(owner, {}).get(task_id)
            if entry is None:
                continue
            entry.withdrawn = True
            if not entry.holder:
                self.tasks.drop(task_id)
                del self._helping[owner][task_id]

    @property
    def helping_count(self) -> int:
        """Return the number of other brokers' tasks that wait or run here."""
        return sum(map(len, self._helping.values()))

    def has_of(self, owner: str) -> bool:
        """Return whether tasks or results of another broker are here."""
        return bool(self._helping.get(owner) or self.results.helped.get(owner))

    def has_of_others(self) -> bool:
        """Return whether tasks or results of any other broker are here."""
        return any(self._helping.values()) or any(self.results.helped.values())

    def forget_owner(self, owner: str) -> None:
        """Stop the tasks of a broker of which nothing is left, and forget their results."""
        self.results.given_back(owner, list(self.results.helped.get(owner, {})))
        self.drop_helped(owner, list(self._helping.get(owner, {})))

    def hand_back_helped(self) -> None:
        """Hand back the tasks of other brokers that nobody runs."""
        waiting = [e for helping in self._helping.values() for e in helping.values()]
        self._finish([self._ended(e, m.HANDED_BACK) for e in waiting if not e.holder])

    def is_empty(self) -> bool:
        """Return whether nothing is here that anybody could want."""
        return not self.tasks and not len(self.results)

    def withdrawn_of(self, holder: str) -> list[str]:
        """Return the tasks that a holder must stop."""
        return [i for i, entry in self.held.get(holder, {}).items() if entry.withdrawn]

    def status(self) -> m.StatusReply:
        """Return how many tasks are in each queue, and what was counted."""
        processing = sum(map(len, self.held.values()))
        helper = 0
        if self.helping_count:  # each of hundreds of thousands is looked at only where it must be
            helper = sum(1 for entry in self.tasks.values() if entry.owner and not entry.holder)
        workers = [
            m.StatusReply.Worker(name=holder, running=len(held))
            for holder, held in self.held.items()
            if held and not holder.startswith(PEER)
        ]
        return m.StatusReply(
            owned=len(self.tasks) - processing - helper, helper=helper, processing=processing,
            results=len(self.results), workers=workers,
            accepted=self.counts["accepted"], failed=self.counts["failed"],
            dropped=self.counts["dropped"], lent=self.counts["lent"],
        )  # fmt: skip

    # Inside -------------------------------------------------------------------------------------

    def _waits(self, entry: Entry) -> bool:
        return not entry.holder and self.tasks.get(entry.task.id) is entry

    def add(self, task: m.Task, owner: str = "", owner_lease: int = 0) -> Entry:
        """Keep a task, without putting it into a queue."""
        return self.tasks.keep(Entry(task, owner, owner_lease))

    def _distrust(self, entry: Entry) -> None:
        """Let the next run copy the folder that was handed back: the last may yet write there."""
        if entry.task.checkpoint.startswith(f"{files.TASKS}/{entry.task.id}/"):
            entry.task.checkpoint = ""

    def _queue(self, entry: Entry, *, first: bool = False) -> None:
        queue = self._helper if entry.owner else self._owned
        queue.push(entry.owner or entry.task.origin, entry, first=first)

    def _next(self, room: Room, lend: bool) -> Entry | None:
        """Take the next task from the owned and the helper queue in turn."""
        if lend:
            return self._owned.pop(room.fits)
        helper_first = self._ahead > 0
        queues = (self._helper, self._owned) if helper_first else (self._owned, self._helper)
        for queue in queues:
            entry = queue.pop(room.fits)
            if entry is None:
                self._ahead = 0.0  # nothing is saved up for a queue that is empty
                continue
            self._ahead += -entry.cost if entry.owner else entry.cost
            return entry
        return None

    def hold(self, entry: Entry, holder: str, now: float) -> None:
        """Put a task into processing, or go on with its lease."""
        if entry.holder != holder:
            self._release(entry)
            entry.holder = holder
            self.held.setdefault(holder, {})[entry.task.id] = entry
        watched = entry.until > now
        entry.until = now + self.lease_s
        if not watched:
            self.watch(entry)

    def watch(self, entry: Entry) -> None:
        """Note when a task's lease ends."""
        self._ordered += 1
        heapq.heappush(self._ends, (entry.until, self._ordered, entry))

    def _release(self, entry: Entry) -> None:
        held = self.held.get(entry.holder)
        if held is not None:
            held.pop(entry.task.id, None)
            if not held:
                del self.held[entry.holder]
        entry.holder, entry.until = "", 0.0

    def _current(self, holder: str, task_id: str, lease_id: int, now: float) -> Entry | None:
        """Return the task if this lease of this holder is the valid one."""
        entry = self.tasks.get(task_id)
        if entry is None:
            return None
        if entry.lease_id == lease_id and entry.holder in (holder, ""):
            if entry.counted:
                entry.counted = False
                entry.task.deaths -= 1
                self._note_again([entry])
            return entry
        if entry.lease_id < lease_id < self.incarnation << _INCARNATION_BITS:
            entry.lease_id, entry.begun = lease_id, False
            self.hold(entry, holder, now)
            return entry
        return None

    def _ended(self, entry: Entry, outcome: m.Outcome, error: str = "") -> tuple[Entry, m.Result]:
        task = entry.task
        return entry, m.Result(task_id=task.id, outcome=outcome, error=error, deaths=task.deaths)

    def _finish(self, finished: list[tuple[Entry, m.Result]]) -> None:
        """Keep results in place of their tasks."""
        for entry, _ in finished:
            self.tasks.drop(entry.task.id)
            if entry.owner:
                self._helping[entry.owner].pop(entry.task.id, None)
        self.results.add(finished)

    def _note_again(self, entries: list[Entry]) -> None:
        if own := [entry.task for entry in entries if not entry.owner]:
            self._record(stored.AGAIN, stored.pack_again(own))

    def _note_counts(self) -> None:
        """Record what no other record tells: results that were dropped, tasks that were lent."""
        self._record(stored.COUNTS, stored.pack_counts(self.counts))
