"""The learner's side of its writer process, and the memory that both share.

The memory is an anonymous file (memfd): nothing is left behind if both are killed.
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
        """Why the process has ended; None while it lives."""
        self._process = self._start()
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        _OPEN.add(self)

    @property
    def pid(self) -> int:
        """Return the writer's process id."""
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
        # A signal to the whole group must not reach the writer before it ignores such signals.
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
        """Return by how many bytes the memory must grow for a snapshot of this size."""
        if size_bytes <= self._size_bytes:
            return 0
        # The next snapshots may be a little larger: the position and its history grow.
        pages = -(-(size_bytes + _SLACK_BYTES) // mmap.PAGESIZE)
        return pages * mmap.PAGESIZE - self._size_bytes

    def memory(self, size_bytes: int, *, pinned: bool = False) -> torch.Tensor:
        """Return shared memory, faulted in: uint8, shape (at least size_bytes,).

        Args:
            size_bytes: how much memory is needed.
            pinned: whether a GPU will write to the memory.
        """
        if (more_bytes := self.missing_bytes(size_bytes)) > 0:
            self._unpin()
            self._size_bytes += more_bytes
            os.ftruncate(self._descriptor, self._size_bytes)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE  # memory from before keeps its pages
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
        """Order the writer to write a checkpoint.

        Args:
            order: the checkpoint to write.
            tree_place: the first byte of state.json in the memory, and the end.
            pieces_place: the same for the list of the pieces.
        """
        raw = {**asdict(order), "root": str(order.root)}
        message = {"order": raw, "tree_place": tree_place, "pieces_place": pieces_place}
        self._send({"save": {"memory_bytes": self._size_bytes, **message}})

    def tell_lost(self, problem: str) -> None:
        """Inform the writer that a share will not come."""
        self._send({"lost": problem})

    def end(self, alone_s: float = 0.0) -> None:
        """Ask the writer to finish its order and end.

        Args:
            alone_s: how long to wait for the shares of other learners.
        """
        self._send({"end": alone_s})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `events` notices that the writer has ended
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def events(self) -> list[dict[str, Any]]:
        """Return the writer's events since the last call, without waiting."""
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
        """Wait until the writer sends an event, or the time is up."""
        assert self._process.stdout is not None
        poll = select.poll()  # select.select() can't watch a process's 1,025th file
        poll.register(self._process.stdout.fileno(), select.POLLIN)
        poll.poll(timeout_s * 1000)

    def disconnect(self) -> None:
        """Close this process's ends of the pipes; other processes may still be connected."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def close(self) -> None:
        """Let the writer finish, and wait for its end."""
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
    """Disconnect a process forked by the user's program from its parent's writers."""
    for writer in list(_OPEN):
        writer.disconnect()


os.register_at_fork(after_in_child=_forked)


def _words(code: int) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"its writer process {how}; from now on the learner writes while training waits"
