"""Count the time that workers have been there, which a budget of node-hours pays for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import Endpoint, read_endpoints
from search.protocol.stubs import BrokerStub

LOOK_S = 2.0
_PATIENCE_S = 5.0


async def count_workers(
    job_dir: Path, credentials: Credentials, add: Callable[[float], None]
) -> None:
    """Ask all brokers for their workers, for ever.

    Args:
        add: Takes the worker-seconds since the last look.
    """
    counted_at = time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        brokers = read_endpoints(job_dir)
        counts = await asyncio.gather(*(_workers_of(each, credentials) for each in brokers))
        now = time.monotonic()
        add(sum(counts) * (now - counted_at))
        counted_at = now


async def _workers_of(broker: Endpoint, credentials: Credentials) -> int:
    """Return how many workers a broker hears of; none where it does not answer."""
    try:
        async with open_channel(broker.address, credentials) as channel:
            reply = await BrokerStub(channel).Status(m.StatusRequest(), timeout=_PATIENCE_S)
            return len(reply.workers)
    except grpc.aio.AioRpcError:
        return 0
