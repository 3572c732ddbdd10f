"""The learner's side of its writer process, and the memory that both see.

The memory is a file without a name (memfd): nothing stays when both are killed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from learner.checkpoint_files.publish import Order

_HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SLACK_BYTES = 1024**2


class WriterProcess:
    """A writer process that waits for orders. Start it before MPI, torch's threads and CUDA."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("dlctl-checkpoint")
        self._size_bytes = 0
        self._view = torch.empty(0, dtype=torch.uint8)
        self._pinned = False
        self._received = b""
        self.death: str | None = None
        """Why it is no more."""
        self._process = self._start()
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        _OPEN.add(self)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
        # A signal to the whole group must not meet it before it has learnt to ignore that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "learner.checkpoint_files.writer", str(self._descriptor)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                pass_fds=[self._descriptor], cwd=root, env=env,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def missing_bytes(self, size_bytes: int) -> int:
        """Return by how much the memory has to grow for a snapshot of this size."""
        if size_bytes <= self._size_bytes:
            return 0
        # The next snapshots may be a little larger: the position and its history grow.
        pages = -(-(size_bytes + _SLACK_BYTES) // mmap.PAGESIZE)
        return pages * mmap.PAGESIZE - self._size_bytes

    def memory(self, size_bytes: int, *, pinned: bool = False) -> torch.Tensor:
        """Return shared memory, faulted in: uint8, shape (at least size_bytes,).

        Args:
            size_bytes: How much is wanted.
            pinned: Whether a GPU is going to write to it.
        """
        if (more_bytes := self.missing_bytes(size_bytes)) > 0:
            self._unpin()
            self._size_bytes += more_bytes
            os.ftruncate(self._descriptor, self._size_bytes)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # what was there keeps its pages
            mapping = mmap.mmap(self._descriptor, self._size_bytes, flags=flags)
            self._view = torch.frombuffer(mapping, dtype=torch.uint8)
        if pinned and not self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostRegister(self._view.data_ptr(), self._size_bytes, 0)
            self._pinned = True
        return self._view

    def _unpin(self) -> None:
        if self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self._view.data_ptr())
            self._pinned = False

    def order(
        self, order: Order, tree_place: tuple[int, int], pieces_place: tuple[int, int]
    ) -> None:
        """Have a checkpoint written.

        Args:
            order: What is asked for.
            tree_place: Where in the memory state.json stands, from byte to byte.
            pieces_place: Where the list of the pieces stands.
        """
        raw = {**asdict(order), "root": str(order.root)}
        message = {"order": raw, "tree_place": tree_place, "pieces_place": pieces_place}
        self._send({"save": {"memory_bytes": self._size_bytes, **message}})

    def tell_lost(self, problem: str) -> None:
        """Say that a share will not come."""
        self._send({"lost": problem})

    def end(self, alone_s: float = 0.0) -> None:
        """Have it finish what it has; the shares of other learners are waited for so long."""
        self._send({"end": alone_s})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `events` says that it is no more
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def events(self) -> list[dict[str, Any]]:
        """Return what it has said since the last call, without waiting."""
        if self.death is not None:
            return []
        assert self._process.stdout is not None
        ended = False
        while True:
            try:
                received = os.read(self._process.stdout.fileno(), 65536)
            except BlockingIOError:
                break
            ended = not received
            if ended:
                break
            self._received += received
        *lines, self._received = self._received.split(b"\n")
        if ended:
            self.death = _words(self._process.wait())
        return [dict(json.loads(line)) for line in lines]

    def wait(self, timeout_s: float) -> None:
        """Wait until it says something, or the time is up."""
        assert self._process.stdout is not None
        poll = select.poll()  # select.select() can't watch a process's 1,025th file
        poll.register(self._process.stdout.fileno(), select.POLLIN)
        poll.poll(timeout_s * 1000)

    def disconnect(self) -> None:
        """Give it up to whoever else is connected to it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def close(self) -> None:
        """Let it finish and wait for its end."""
        if self._descriptor >= 0:
            self.end()  # a forked process may still hold the other end of its input
        self.disconnect()
        self._process.wait()
        if self._descriptor >= 0:
            self._unpin()
            os.close(self._descriptor)
            self._descriptor = -1


_OPEN: weakref.WeakSet[WriterProcess] = weakref.WeakSet()


def _forked() -> None:
    """Keep a process that the user's program forked from holding the writers of its parent."""
    for writer in list(_OPEN):
        writer.disconnect()


os.register_at_fork(after_in_child=_forked)


def _words(code: int) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"its writer process {how}; from now on it writes by itself while training waits"
