"""A broker of a search in the process of a test, with a real log and a real lease."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from search.broker.queues import Queues
from search.broker.service import BrokerService
from search.journal.epochs import LEFT, Lease, log_path
from search.journal.log import Log
from search.protocol import messages as m


@contextlib.contextmanager
def broker_in(
    folder: Path, kind: type[BrokerService] = BrokerService, queues: type[Queues] = Queues
) -> Iterator[Any]:
    """Yield a broker; its lease, which ends with the block, bears silence for a minute."""
    lease = Lease.claim(folder, 60.0)
    log = Log(log_path(folder, lease.incarnation))
    try:
        yield kind("b0", queues(lease.incarnation, 60.0, log.append), log, lease)
    finally:
        log.close()
        lease.close(LEFT)


async def submit(broker: BrokerService, *numbers: int, **fields: Any) -> m.SubmitReply:
    """Give a broker tasks of these numbers, in the name of the model "m"."""
    tasks = [m.Task(id=f"{number:032x}", type="python", **fields) for number in numbers]
    context: Any = None  # it refuses nothing here
    return await broker.Submit(m.SubmitRequest(model="m", tasks=tasks), context)
