"""Run the nameserver: `python -m search.nameserver JOB_DIR`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import grpc.aio

from search.nameserver.registry import Registry
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_server
from search.protocol.endpoints import NAMESERVER, Endpoint, read_nameserver, write_endpoint
from search.protocol.places import own_place
from search.protocol.process import run_process
from search.protocol.settings import Settings
from search.protocol.strangers import count_strangers
from search.protocol.stubs import make_handler


class NameserverService:
    """A nameserver's answers."""

    def __init__(self, settings: Settings) -> None:
        self._registry = Registry(settings.heartbeat_timeout_s)

    async def Register(
        self, request: m.RegisterRequest, context: grpc.aio.ServicerContext
    ) -> m.RegisterReply:
        """Add a broker."""
        del context
        now = time.monotonic()
        self._registry.register(request.broker, request.incarnation, request.address, now)
        return m.RegisterReply()

    async def Heartbeat(
        self, request: m.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> m.HeartbeatReply:
        """Note that a broker lives."""
        del context
        known = self._registry.beat(request.broker, request.incarnation, time.monotonic())
        return m.HeartbeatReply(register_again=not known)

    async def Lookup(
        self, request: m.LookupRequest, context: grpc.aio.ServicerContext
    ) -> m.LookupReply:
        """Say where a random broker is."""
        del context
        found = self._registry.lookup(request.except_broker, time.monotonic())
        if found is None:
            return m.LookupReply()
        name, incarnation, address = found
        return m.LookupReply(broker=name, incarnation=incarnation, address=address)


async def serve(job_dir: Path) -> None:
    """Answer until cancelled."""
    settings = Settings.load(job_dir)
    handler = make_handler("Nameserver", NameserverService(settings))
    credentials = Credentials.load(job_dir, "nameserver")
    server, address = open_server(own_place(settings.network), credentials, [handler])
    await server.start()
    former = read_nameserver(job_dir)
    incarnation = former.incarnation + 1 if former else 1
    write_endpoint(job_dir, Endpoint(NAMESERVER, incarnation, address))
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop(0.5)


def main(arguments: list[str]) -> int:
    """Run the nameserver until a signal."""
    parser = argparse.ArgumentParser(prog="python -m search.nameserver")
    parser.add_argument("job_dir", type=Path)
    options = parser.parse_args(arguments)
    return run_process("nameserver", serve(options.job_dir))


if __name__ == "__main__":
    count_strangers()
    sys.exit(main(sys.argv[1:]))
