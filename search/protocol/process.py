"""Runs a process of a search until a signal, or until something in it fails.

gRPC writes a line for each failed TLS handshake: strangers must not fill a server's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import search as files
from search.errors import SearchError

EXIT_FAILED = 1


def run_process(name: str, body: Coroutine[Any, Any, None], *, until_eof: bool = False) -> int:
    """Run a process's body; return the exit code. An error that users understand is one sentence.

    The body is cancelled at SIGTERM and SIGINT, and ends with its own cleaning up.

    Args:
        until_eof: It serves the process at the other end of its standard input, and is cancelled
            when that has closed it or died. Signals, which a scheduler sends to both, are ignored.
    """

    async def run() -> None:
        task = asyncio.ensure_future(body)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, (lambda: None) if until_eof else task.cancel)
        if until_eof:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            threading.Thread(target=_wait_for_eof, args=(loop, task), daemon=True).start()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    try:
        asyncio.run(run())
    except SearchError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    return 0


def _wait_for_eof(loop: asyncio.AbstractEventLoop, task: asyncio.Future[None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(task.cancel)


async def run_until_one_ends(*bodies: Coroutine[Any, Any, None]) -> None:
    """Run loops side by side. When one ends, or fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(body) for body in bodies]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


EVERY_S = 600.0
_FAILED = b"Handshake failed"


def count_strangers(every_s: float = EVERY_S) -> None:
    """Have this process's standard error count failed handshakes, and tell of them seldom.

    What Python writes does not take the way through here, and is not lost when the process dies.
    """
    log = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(os.dup(log), "w", buffering=1, errors="backslashreplace")
    threading.Thread(
        target=_pass_on, args=(reading, log, every_s), name="strangers", daemon=True
    ).start()


def _pass_on(reading: int, log: int, every_s: float) -> None:
    written_at, count = float("-inf"), 0
    with os.fdopen(reading, "rb") as lines, os.fdopen(log, "wb", buffering=0) as out:
        for line in lines:
            if _FAILED not in line:
                with suppress(OSError):  # a full disk must not stop who writes
                    out.write(line)
                continue
            count += 1
            if time.monotonic() - written_at >= every_s:
                connections = "connection has" if count == 1 else "connections have"
                why = line.rpartition(b"] ")[2].decode(errors="replace").strip()
                summary = (
                    f"dlctl: {count} {connections} failed the TLS handshake since the last such "
                    f"line: only processes of this search are let in; the newest: {why}\n"
                )
                with suppress(OSError):
                    out.write(summary.encode())
                written_at, count = time.monotonic(), 0


def load_spec(job_dir: Path) -> files.Spec:
    """Read the specification of a search.

    Raises:
        SearchError: There is none, or it can't be understood.
    """
    try:
        spec = contract.read_record(files.Spec, job_dir / files.SPEC)
    except (OSError, contract.ContractError) as error:
        raise SearchError(f"{job_dir / files.SPEC} can't be read: {error}") from error
    if spec is None:
        raise SearchError(
            f"{job_dir} is not the directory of a search: it has no {files.SPEC}",
            hint="`dlctl search start` makes one",
        )
    return spec


_ENDS = (files.ENDED, contract.HALT_REQUEST, contract.CANCEL_REQUEST)


def is_ending(job_dir: Path) -> bool:
    """Return whether the search is done, or was halted or cancelled: then it needs no workers."""
    return any((job_dir / name).exists() for name in _ENDS)
