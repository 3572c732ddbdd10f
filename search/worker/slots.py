"""A slot as its worker sees it: a process that runs one task at a time and is replaced when ill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import search.slot as frames
from dlctl.contract import search as files
from dlctl.contract.ground.processes import end_child
from dlctl.contract.launchers import GPU_VARIABLES
from search.errors import SearchError
from search.protocol import messages as m
from search.worker import folders

_LOOK_S = 0.1
_LEAVING_S = 0.3
"""A process that has closed its connection to the worker has this long to end."""
MOST_LOG_BYTES = 64 << 20
"""A task that prints more is ended."""
STOP_GRACE_S = 5.0
"""A task that was told to stop is ended after this."""
_START = """\
import sys
sys.path[:] = filter(None, sys.path)
from search.slot.program import main
main()
"""
"""The current folder is no place for modules: its files would shadow ours. PYTHONSAFEPATH does the
same, from Python 3.11 on."""
OnReport = Callable[[str, int, dict[str, float]], None]


class _Ended(Exception):
    """The slot's process ended a task, or was ended."""

    def __init__(self, outcome: m.Outcome, error: str, number: int = 0) -> None:
        super().__init__(error)
        self.outcome, self.error, self.number = outcome, error, number


class Slot:
    """One slot. Its process starts at the first task, and again whenever it is not to be reused.

    Args:
        memory_bytes: what a task may use that does not say it.
    """

    def __init__(self, job_dir: Path, memory_bytes: int, gpus: Gpus, on_report: OnReport) -> None:
        self._job_dir, self._memory_bytes, self._on_report = job_dir, memory_bytes, on_report
        self._all_gpus = gpus
        self.gpus: tuple[str, ...] = ()
        """The GPUs that the process sees."""
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._order: m.Order = m.CONTINUE
        self._end_at: float | None = None
        self._folder: Path | None = None
        """The folder of the run that is under way, or was last."""
        self.task_id = ""
        self.trouble = ""
        """Why it can't run tasks."""
        self.was_terminated = False
        """Whether SIGTERM ended the last task: the scheduler may be ending the whole job."""

    def order(self, order: m.Order, grace_s: float = STOP_GRACE_S) -> None:
        """Tell the running task to stop or to checkpoint. After the grace period it is ended."""
        if not self.task_id or order <= self._order:
            return
        self._order = order
        self._end_at = time.monotonic() + grace_s
        if self._process is not None:
            self._send_order()

    async def run(self, lease: m.Lease, gpus: tuple[str, ...]) -> m.Result:
        """Run a task; return its result, whatever it does."""
        task = lease.task
        if gpus != self.gpus:  # a process that has used GPUs can't be given others
            await self.close()
            self.gpus = gpus
        self.task_id, self._order, self._end_at = task.id, m.CONTINUE, None
        self._folder = None
        self.was_terminated = False
        result = m.Result(task_id=task.id, lease_id=lease.id, started_at=time.time())
        began = time.monotonic()
        try:
            await self._run(task, result)
        except _Ended as ended:
            result.outcome, result.error = ended.outcome, ended.error
            self.was_terminated = ended.number == signal.SIGTERM
            self._note_checkpoint(result)
            await self.close()
            _shorten(self._log(task.id))
        except shutil.Error as error:
            result.outcome = m.FAILED
            result.error = f"what an earlier run left can't be copied: {error.args[0][:1]}"
        except OSError as error:  # not the task's fault: another worker is to run it
            result.outcome = m.HANDED_BACK
            self.trouble = f"this worker can't run tasks: {error}"
            await self.close()
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            self.task_id = ""
            folders.tidy(self._log(task.id).parent, self._folder)
        result.seconds = time.monotonic() - began
        return result

    async def close(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        self._writer.close()
        await asyncio.to_thread(end_child, process, group=True)

    def _note_checkpoint(self, result: m.Result) -> None:
        if result.outcome == m.HANDED_BACK and self._folder is not None:
            result.checkpoint = folders.relative(self._job_dir, self._folder)

    def _log(self, task_id: str) -> Path:
        return self._job_dir / files.TASKS / task_id / "log"

    def _send_order(self) -> None:
        self._writer.write(frames.pack({"order": int(self._order), "task": self.task_id}))

    async def _run(self, task: m.Task, result: m.Result) -> None:
        self._folder, source = folders.claim(self._job_dir, task)
        if source is not None:
            await asyncio.to_thread(folders.copy, source, self._folder)
        log = self._log(task.id)
        if self._process is None:
            await self._start()
        head = {
            "task": task.id,
            "type": task.type,
            "encoding": task.encoding,
            "checkpoint": str(self._folder),
            "log": str(log),
            "memory_bytes": task.needs.memory_bytes or self._memory_bytes,
        }
        self._writer.write(frames.pack(head, task.payload))
        if self._order != m.CONTINUE:  # it came while the process started
            self._send_order()
        watch = asyncio.ensure_future(self._watch(task, log))
        finish = asyncio.ensure_future(self._wait_for_result(result, task.encoding or "json"))
        try:
            await asyncio.wait({watch, finish}, return_when=asyncio.FIRST_COMPLETED)
            if not finish.done():
                watch.result()  # raises
            reuse = finish.result()
        finally:
            watch.cancel()
            finish.cancel()
            await asyncio.gather(watch, finish, return_exceptions=True)
        self._note_checkpoint(result)
        if not reuse:
            await self.close()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        code = self._job_dir / "code"
        path = [os.environ.get("PYTHONPATH", ""), str(code)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=code if code.is_dir() else self._job_dir,
                env=os.environ
                | self._all_gpus.environment(self.gpus)
                | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)

    async def _wait_for_result(self, result: m.Result, encoding: str) -> bool:
        """Fill in what the task's process says; return whether the process is to be reused."""
        while True:
            head, value = await self._read()
            if report := head.get("report"):
                self._on_report(result.task_id, int(report["step"]), report["metrics"])
                continue
            fields = head["result"]
            result.outcome = getattr(m, fields["outcome"])
            # Names of files that are no UTF-8 are allowed in Python's texts, not in messages.
            result.error = fields["error"].encode(errors="backslashreplace").decode()
            result.value = value
            result.encoding = encoding if value else ""
            return bool(fields["reuse"])

    async def _read(self) -> tuple[dict[str, Any], bytes]:
        try:
            lengths = await self._reader.readexactly(frames.LENGTHS_BYTES)
            text_bytes, body_bytes = frames.unpack_lengths(lengths)
            text = await self._reader.readexactly(text_bytes)
            return json.loads(text), await self._reader.readexactly(body_bytes)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise await self._how_it_ended() from None

    async def _how_it_ended(self) -> _Ended:
        assert self._process is not None
        code = await asyncio.to_thread(end_child, self._process, _LEAVING_S, ask=False, group=True)
        if code >= 0:
            return _Ended(
                m.FAILED, f"the program ended with exit code {code} before it returned a value"
            )
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return _Ended(m.FAILED, f"the program was killed by {name}", -code)
        return _Ended(m.FAILED, f"the program was killed by signal {-code}")

    async def _watch(self, task: m.Task, log: Path) -> None:
        """Raise _Ended when the task may go on no longer."""
        began = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            if self._end_at is not None and now > self._end_at:
                if self._order == m.CHECKPOINT:
                    raise _Ended(m.HANDED_BACK, "")
                raise _Ended(m.CANCELLED, "")
            if task.time_limit_s and now - began > task.time_limit_s:
                raise _Ended(
                    m.TIMED_OUT, f"the program ran longer than its limit, {task.time_limit_s:g} s"
                )
            with contextlib.suppress(OSError):
                if log.stat().st_size > MOST_LOG_BYTES:
                    raise _Ended(m.FAILED, f"the program printed more than {MOST_LOG_BYTES} bytes")


class EchoSlot(Slot):
    """A slot for measurements: it answers at once, without a process, with the payload."""

    async def run(self, lease: m.Lease, gpus: tuple[str, ...]) -> m.Result:  # noqa: ARG002
        """Return the payload."""
        task = lease.task
        return m.Result(task_id=task.id, lease_id=lease.id, outcome=m.SUCCEEDED, value=task.payload)


class Gpus:
    """Knows which GPUs are free.

    Args:
        count: How many the job was given.
        environment: Where the scheduler says which.

    Raises:
        SearchError: The scheduler gave fewer.
    """

    def __init__(self, count: int, environment: Mapping[str, str] = os.environ) -> None:
        self._variable = next((v for v in GPU_VARIABLES if environment.get(v)), GPU_VARIABLES[0])
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


def _shorten(log: Path) -> None:
    with contextlib.suppress(OSError):
        if log.stat().st_size > MOST_LOG_BYTES:
            os.truncate(log, MOST_LOG_BYTES)
