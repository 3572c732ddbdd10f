"""What a broker tells in its file."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from event_loops import run_loop

from dlctl import contract
from search.broker.queues import Queues
from search.broker.service import BrokerService
from search.broker.status import tell
from search.journal.epochs import Lease
from search.journal.log import Log


def test_a_broker_that_ends_writes_nothing_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that was under way made the file again that a broker which retires had removed."""
    began, may_end = threading.Event(), threading.Event()
    written: list[bool] = []
    whole = contract.write_whole

    def slow(path: Path, text: str, **more: Any) -> None:
        if not began.is_set():
            began.set()
            may_end.wait(60)
        whole(path, text, **more)
        written.append(task.done())

    async def run() -> None:
        nonlocal task
        lease, log = Lease.claim(tmp_path, 1000.0), Log(tmp_path / "1.0.log")
        monkeypatch.setattr("dlctl.contract.write_whole", slow)
        service = BrokerService("b", Queues(1, 10.0, log.append), log, lease)
        try:
            task = asyncio.ensure_future(tell(tmp_path, service))
            await asyncio.to_thread(began.wait, 60)
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            may_end.set()
            await asyncio.wait([task], timeout=60)
            while len(written) < 2:
                await asyncio.sleep(0)
            assert written == [False, False]
        finally:
            log.close()
            lease.close()

    task: asyncio.Future[None]
    run_loop(run())
