"""A model is told to wait while the broker's memory or disk can't keep up."""

from pathlib import Path
from typing import Any, cast

import pytest
from event_loops import run_loop

from search.broker import service as service_module
from search.broker.queues import Queues
from search.broker.service import BrokerService
from search.journal.epochs import Lease
from search.journal.log import Log
from search.protocol import messages as m


def test_room_by_number_by_bytes_and_by_what_the_disk_has_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MOST_TASKS", 5)
    monkeypatch.setattr(service_module, "MOST_KEPT_BYTES", 1000)

    async def run() -> None:
        lease = Lease.claim(tmp_path, 10.0)
        log = Log(tmp_path / "1.0.log")
        queues = Queues(1, 10.0, log.append)
        broker = BrokerService("b0", queues, log, lease)
        numbers = iter(range(100))

        async def submit(*sizes: int) -> m.SubmitReply:
            tasks = [m.Task(id=f"{next(numbers):032x}", payload=b"x" * size) for size in sizes]
            request = m.SubmitRequest(model="one", tasks=tasks)
            return await broker.Submit(request, cast(Any, None))  # it refuses nothing here

        try:
            reply = await submit(1, 1, 1)
            assert (len(reply.accepted), reply.room) == (3, 2)
            assert (await submit(2000)).room == 0
            assert not (await submit(1)).accepted
            queues.cancel("one", [f"{3:032x}"])
            queues.results.forget("one", 1)
            reply = await submit(1, 1, 1)
            assert (len(reply.accepted), reply.room) == (2, 0)
            queues.cancel("one", [f"{0:032x}"])
            queues.results.forget("one", 2)
            await log.flushed()
            monkeypatch.setattr(service_module, "MOST_BACKLOG_BYTES", -1)
            assert broker._room() == 0
        finally:
            log.close()
            lease.close()

    run_loop(run())
