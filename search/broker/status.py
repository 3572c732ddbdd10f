"""Tells in a file what is in a broker's queues, and who works for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import NoReturn

from dlctl import contract
from dlctl.contract import search as names
from search.broker.service import FORGET_S, BrokerService

TELL_S = 1.0


async def tell(folder: Path, service: BrokerService) -> NoReturn:
    """Write the broker's file about once a second, and when it ends."""
    writing: asyncio.Future[None] | None = None
    try:
        while True:
            writing = asyncio.ensure_future(asyncio.to_thread(_write, folder, _now(service)))
            await asyncio.shield(writing)
            await asyncio.sleep(TELL_S)
    finally:
        if writing is not None:
            await writing  # or it would write after the last
        _write(folder, _now(service))


def _now(service: BrokerService) -> str:
    return contract.to_json(broker_status(service, time.monotonic(), time.time()))


def _write(folder: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk ends no broker: its log decides
        contract.write_whole(folder / names.BROKER_STATUS, text)


def broker_status(service: BrokerService, now: float, wall: float) -> names.BrokerStatus:
    """Return what a broker tells.

    Args:
        now: seconds of the monotonic clock.
        wall: Unix seconds.
    """
    status = service.status(now)
    running = {worker.name: worker.running for worker in status.workers}
    waits = {request.worker for request in service.idle_workers()}
    workers = []
    for name, (heard_at, request) in sorted(service.workers.items()):
        if name not in running and name not in waits and now - heard_at > FORGET_S:
            continue
        has = request.has
        workers.append(names.WorkerStatus(
            name, running.get(name, 0), round(0.0 if name in waits else now - heard_at, 3),
            name in waits, has.cpus, has.gpus, has.memory_bytes, list(has.labels),
            request.seconds_left, list(request.types),
        ))  # fmt: skip
    return names.BrokerStatus(
        service.name, status.incarnation, wall, status.owned, status.helper, status.processing,
        status.results, status.accepted, status.failed, status.dropped, status.lent, workers,
    )  # fmt: skip
