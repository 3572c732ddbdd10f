"""The results of one model, until it says that it has them; and what its running tasks report."""

from __future__ import annotations

from collections import deque

from search.protocol import messages as m


class Mailbox:
    """Accepted results in order. Each has a number; the numbers go on over all incarnations."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest result."""
        self.cursor = 0
        """The model has the results up to this one."""
        self.accepted: deque[m.Accepted] = deque()
        """Those after the cursor."""
        self._reports: dict[str, m.Report] = {}

    def add(self, accepted: m.Accepted) -> int:
        """Add a result; return its number."""
        self.accepted.append(accepted)
        self.last += 1
        self._reports.pop(accepted.result.task_id, None)
        return self.last

    def forget(self, cursor: int) -> list[str]:
        """Forget the results up to a number; return the ids of their tasks."""
        gone = []
        while self.cursor < min(cursor, self.last):
            gone.append(self.accepted.popleft().result.task_id)
            self.cursor += 1
        return gone

    def report(self, report: m.Report) -> None:
        """Keep the newest values of what a task reports."""
        kept = self._reports.setdefault(report.task_id, m.Report(task_id=report.task_id))
        kept.lease_id, kept.step = report.lease_id, report.step
        for name, value in report.metrics.items():
            kept.metrics[name] = value

    def take_reports(self) -> list[m.Report]:
        """Return what was reported since the last call."""
        taken = list(self._reports.values())
        self._reports.clear()
        return taken

    @property
    def has_reports(self) -> bool:
        """Whether something was reported since they were last taken."""
        return bool(self._reports)

    def read(self, most: int, most_bytes: int) -> list[m.Accepted]:
        """Return the first results after the cursor: at least one if there is one."""
        found: list[m.Accepted] = []
        size = 0
        for each in self.accepted:
            size += len(each.result.value) + 256
            if found and (len(found) >= most or size > most_bytes):
                break
            found.append(each)
        return found
