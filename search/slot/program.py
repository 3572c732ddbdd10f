"""The program of a slot: takes tasks from its worker, runs each, and sends what became of it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import search.slot as frames
from search.tasks import Order
from search.tasks.run import TaskError, run_task

_PR_SET_PDEATHSIG = 1
_LOOK_MS = 1000
_MOST_STEPS = 2**63 - 1
_NO_ORDERS = (Order.CONTINUE, Order.CONTINUE)


class Slot:
    """The slot's end of the connection to its worker.

    A thread reads: orders may come while a task runs, and when the connection ends the worker has
    died, and everything that runs here ends with it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._fileno = connection.fileno()
        self._inode = os.fstat(self._fileno).st_ino
        self._read_ahead = bytearray()
        self._sending = threading.Lock()
        self._tasks: list[tuple[dict[str, Any], bytes]] = []
        self._came = threading.Condition()
        self.task_id = ""
        self.order = Order.CONTINUE
        self.last_answer = Order.CONTINUE
        """The last order that the task was told in answer to a report."""
        self.on_order: list[Any] = []
        """Functions without arguments that are called when an order comes."""

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, daemon=True).start()

    def next_task(self) -> tuple[dict[str, Any], bytes]:
        """Wait for a task."""
        with self._came:
            while not self._tasks:
                self._came.wait()
            head, payload = self._tasks.pop()
            return head, payload

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame to the worker."""
        with self._sending:
            self._connection.sendall(frames.pack(head, body))

    def report(self, step: int, metrics: Mapping[str, float]) -> Order:
        """Tell the worker how far the task is.

        Raises:
            ValueError, TypeError: What the task gave is no step, or no number.
        """
        step = int(step)
        if not 0 <= step <= _MOST_STEPS:
            raise ValueError(f"the step {step} is not from 0 to 2^63 - 1")
        values = {name: float(value) for name, value in metrics.items()}
        self.send({"report": {"step": step, "metrics": values}})
        self.last_answer = self.order
        return self.order

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                text, body = frames.unpack_lengths(self._receive(frames.LENGTHS_BYTES))
                head = json.loads(self._receive(text))
                payload = self._receive(body)
                if "order" in head:
                    if head["task"] != self.task_id:
                        continue  # it came after the task had ended
                    self.order = Order(head["order"])
                    for each in self.on_order:
                        each()
                    continue
                with self._came:
                    self.task_id, self.order, self.last_answer = head["task"], *_NO_ORDERS
                    self.on_order.clear()
                    self._tasks.append((head, payload))
                    self._came.notify()
        os.killpg(0, signal.SIGKILL)

    def _wait(self) -> None:
        """Wait until there is something to read.

        Raises:
            OSError: The task has closed the connection, which a thread that waits in `recv` misses.
        """
        ready = select.poll()
        ready.register(self._fileno, select.POLLIN)
        while not ready.poll(_LOOK_MS):
            if os.fstat(self._fileno).st_ino != self._inode:
                raise ConnectionResetError

    def _receive(self, length: int) -> bytes:
        while len(self._read_ahead) < length:
            self._wait()
            part = self._connection.recv(1 << 20)
            if not part:
                raise ConnectionResetError
            self._read_ahead += part
        data = bytes(self._read_ahead[:length])
        del self._read_ahead[:length]
        return data


def main() -> None:
    """Run tasks until the worker ends the connection."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError):  # the kernel is to end the task, not the worker
        Path("/proc/self/oom_score_adj").write_text("1000")
    # A scheduler that ends the job signals each of its processes: the worker says when to save. A
    # handler, unlike SIG_IGN, is not inherited by the programs that a task starts.
    signal.signal(signal.SIGTERM, lambda *_: None)
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)  # what a task starts must not keep it open
    slot = Slot(connection)
    slot.start()
    idle_threads = threading.active_count()
    folder = Path.cwd()
    while True:
        head, payload = slot.next_task()
        result, value = _run(slot, head, payload)
        sys.stdout.flush()
        sys.stderr.flush()
        alone = threading.active_count() == idle_threads and not _children()
        result["reuse"] = alone and result["outcome"] == "SUCCEEDED"
        with contextlib.suppress(OSError):
            os.chdir(folder)
        slot.send({"result": result}, value)


def _run(slot: Slot, head: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    _open_log(head["log"])
    if head["memory_bytes"]:
        _limit_memory(head["memory_bytes"])
    outcome, error, value = "SUCCEEDED", "", b""
    try:
        value = run_task(head, payload, slot.report, slot.on_order, lambda: slot.order)
    except TaskError as failure:
        outcome, error = "FAILED", str(failure)
    except MemoryError:
        outcome, error = "OUT_OF_MEMORY", "the program wanted more memory than its limit"
        traceback.print_exc()
    except BaseException as failure:
        outcome = "FAILED"
        error = f"{type(failure).__name__}: {failure}"[:1000]
        traceback.print_exc()
    if len(value) > frames.LONGEST_VALUE:
        outcome = "FAILED"
        error = f"the value has {len(value)} bytes; at most {frames.LONGEST_VALUE} are allowed"
        value = b""
    order = max(slot.last_answer, slot.order if head["type"] == "exec" else Order.CONTINUE)
    if order is Order.CHECKPOINT:
        outcome, value = "HANDED_BACK", b""
    return {"outcome": outcome, "error": error}, value


def _open_log(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)


def _limit_memory(limit_bytes: int) -> None:
    """Let allocations beyond a limit fail. RLIMIT_AS would count what GPUs only reserve."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _children() -> bool:
    """Return whether processes that a task started are still there."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
