"""The results of a worker that its brokers do not have yet: in a file before they are sent."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from dlctl.contract import search as files
from search.errors import SearchError
from search.journal.log import encode, read_records
from search.protocol import messages as m
from search.protocol.channels import first_fitting

_RESULTS, _TAKEN = ord("R"), ord("T")
_REWRITE_BYTES = 4 << 20


class Outbox:
    """Results by the broker that leased their tasks.

    The file survives the worker, not the node: if the node is lost the tasks run again anyway.

    Raises:
        SearchError: The file can't be read or written.
    """

    def __init__(self, job_dir: Path, worker: str) -> None:
        self._path = job_dir / files.OUTBOXES / f"{worker}.log"
        self.waiting: dict[str, dict[str, m.Result]] = {}
        """Broker → task → result."""
        self._file, self._size = -1, 0
        self._failed = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                for record in read_records(self._path)[0]:
                    self._replay(record.kind, m.ExchangeRequest.FromString(record.payload))
            self._rewrite()
        except OSError as error:
            raise SearchError(
                f"results can't be stored in {self._path}: {error.strerror}",
                hint="look at the space and the permissions of the job directory",
            ) from error

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        return any(self.waiting.values())

    def put(self, broker: str, result: m.Result) -> None:
        """Store a result that is to be sent."""
        self.waiting.setdefault(broker, {})[result.task_id] = result
        self._write(_RESULTS, m.ExchangeRequest(worker=broker, results=[result]))

    def first(self, broker: str, most: int, most_bytes: int) -> list[m.Result]:
        """Return the oldest results of a broker, at least one if there is one."""
        waiting = self.waiting.get(broker, {}).values()
        return first_fitting(waiting, lambda each: len(each.value), most, most_bytes)

    def taken(self, broker: str, task_ids: list[str]) -> None:
        """Forget results that their broker has."""
        waiting = self.waiting.get(broker, {})
        gone = [i for i in task_ids if waiting.pop(i, None) is not None]
        if not self and self._size > _REWRITE_BYTES:
            with contextlib.suppress(OSError):  # a full disk: the old file will do
                self._rewrite()
                return
        if gone:
            results = [m.Result(task_id=i) for i in gone]
            self._write(_TAKEN, m.ExchangeRequest(worker=broker, results=results))

    def forget(self, broker: str) -> None:
        """Forget the results of a broker that nobody wants any more."""
        self.taken(broker, list(self.waiting.get(broker, {})))

    def close(self) -> None:
        """Close the file; remove it if nothing waits."""
        os.close(self._file)
        if not self:
            self._path.unlink(missing_ok=True)

    def _write(self, kind: int, message: m.ExchangeRequest) -> None:
        """Write a record, or none of it: on a full disk results are sent all the same."""
        data = encode(kind, message.SerializeToString())
        try:
            written = os.write(self._file, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            if not self._failed:
                self._failed = True
                print(f"results are not stored, only sent: {self._path}: {error}", flush=True)
            return
        self._size += len(data)

    def _rewrite(self) -> None:
        """Write a new file with what still waits."""
        writing = self._path.with_suffix(".new")
        file = os.open(
            writing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = file, 0
        for broker, waiting in self.waiting.items():
            for result in waiting.values():
                self._write(_RESULTS, m.ExchangeRequest(worker=broker, results=[result]))
        writing.replace(self._path)

    def _replay(self, kind: int, message: m.ExchangeRequest) -> None:
        waiting = self.waiting.setdefault(message.worker, {})
        for result in message.results:
            if kind == _RESULTS:
                waiting[result.task_id] = result
            else:
                waiting.pop(result.task_id, None)
