"""Count the time that workers have been there, which a budget of node-hours pays for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dlctl import contract
from dlctl.contract import search as names

LOOK_S = 2.0
_TOLD_S = 15.0
"""A broker tells every second; one that told earlier than this ago is gone."""
_SEEN_S = 75.0
"""A worker without a task calls at least once a minute."""


async def count_workers(job_dir: Path, add: Callable[[float], None]) -> NoReturn:
    """Look how many workers there are, for ever.

    Args:
        add: Takes the worker-seconds since the last look.
    """
    counted_at = time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        count = len(await asyncio.to_thread(workers_there, job_dir, time.time()))
        now = time.monotonic()
        add(count * (now - counted_at))
        counted_at = now


def workers_there(job_dir: Path, now: float) -> set[str]:
    """Return the names of the workers that brokers have heard of lately.

    Args:
        now: Unix seconds.
    """
    found = set()
    for path in (job_dir / names.BROKERS).glob(f"*/{names.BROKER_STATUS}"):
        try:
            told = contract.read_record(names.BrokerTold, path)
        except (OSError, contract.ContractError):
            continue
        if told is not None and now - told.time < _TOLD_S:
            found |= {each.name for each in told.workers if each.seen_s_ago < _SEEN_S}
    return found
