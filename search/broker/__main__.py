"""Run a broker: `python -m search.broker JOB_DIR --name NAME`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from dlctl.contract import search as files
from search.broker.peers import Peers
from search.broker.queues import Queues
from search.broker.replay import begin, replay, snapshot
from search.broker.service import BrokerService
from search.broker.told import tell
from search.errors import SearchError
from search.journal.epochs import SNAPSHOT_COMPLETE, adopt, log_path, remove_before
from search.journal.lease import Lease
from search.journal.log import Log
from search.protocol.channels import Credentials, open_server
from search.protocol.endpoints import Endpoint, write_endpoint
from search.protocol.places import own_place
from search.protocol.process import run_process, run_until_one_ends
from search.protocol.settings import Settings
from search.protocol.stubs import make_handler

_ADOPTED_GRACE_S = 1.0
"""Workers have this long to say which tasks of a former incarnation they still run."""
_SWITCH_S = 0.0005
"""The log's thread gets its turn this soon while calls keep the interpreter busy."""


def main(arguments: list[str]) -> int:
    """Run a broker until a signal."""
    parser = argparse.ArgumentParser(prog="python -m search.broker")
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--name", required=True)
    options = parser.parse_args(arguments)
    sys.setswitchinterval(_SWITCH_S)
    return run_process(f"broker {options.name}", serve(options.job_dir, options.name))


async def serve(job_dir: Path, name: str) -> None:
    """Adopt what the former incarnation left, then answer."""
    settings = Settings.load(job_dir)
    folder = job_dir / files.BROKERS / name
    lease = await asyncio.to_thread(Lease.claim, folder, settings.heartbeat_timeout_s)
    log: Log | None = None
    try:
        timeout_s = settings.heartbeat_timeout_s
        found = await asyncio.to_thread(adopt, folder, lease.incarnation, timeout_s)
        log = Log(log_path(folder, lease.incarnation))
        queues = Queues(lease.incarnation, timeout_s, log.append)
        for record in found.records:
            replay(queues, record.kind, record.payload)
        for kind, payload in snapshot(queues):
            log.append(kind, payload)
        log.append(SNAPSHOT_COMPLETE, b"")
        await log.flushed()
        if not lease.held():
            raise SearchError(f"the broker {name} lost its lease while it started")
        remove_before(folder, lease.incarnation)
        begin(queues, time.monotonic(), _ADOPTED_GRACE_S)
        print(
            f"incarnation {lease.incarnation}, {len(queues.tasks)} tasks from incarnation "
            f"{found.incarnation}, {found.torn_bytes} bytes of a torn tail left out",
            flush=True,
        )
        await _answer(job_dir, settings, BrokerService(name, queues, log, lease), lease)
    finally:
        if log is not None:
            log.close()
        lease.close()


async def _answer(job_dir: Path, settings: Settings, service: BrokerService, lease: Lease) -> None:
    server, address = open_server(
        own_place(settings.network),
        Credentials.load(job_dir, "broker"),
        [make_handler("Broker", service)],
    )
    endpoint = Endpoint(service.name, lease.incarnation, address)
    await server.start()
    write_endpoint(job_dir, endpoint)
    peers = Peers(job_dir, endpoint, service, settings.heartbeat_s)
    try:
        peers.attend_all()
        await run_until_one_ends(
            service.tick(),
            peers.heartbeats(),
            peers.borrow(),
            _watch(lease, service.name),
            tell(job_dir / files.BROKERS / service.name, service),
        )
    finally:
        await peers.close()
        await server.stop(0.5)


async def _watch(lease: Lease, name: str) -> None:
    while not lease.superseded:
        await asyncio.sleep(0.2)
    raise SearchError(f"another incarnation of the broker {name} has begun: this one ends")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
