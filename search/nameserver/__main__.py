"""Run the nameserver: `python -m search.nameserver JOB_DIR`. It knows which brokers live."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from dlctl.contract.search import Spec
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_server
from search.protocol.endpoints import (
    NAMESERVER,
    Endpoint,
    own_place,
    read_nameserver,
    write_endpoint,
)
from search.protocol.process import count_strangers, load_spec, run_process
from search.protocol.stubs import make_handler


class NameserverService:
    """A nameserver's answers."""

    def __init__(self, spec: Spec) -> None:
        self._registry = Registry(spec.heartbeat_timeout_s)

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
    spec = load_spec(job_dir)
    handler = make_handler("Nameserver", NameserverService(spec))
    credentials = Credentials.load(job_dir, "nameserver")
    server, address = open_server(own_place(spec.network), credentials, [handler])
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


@dataclass
class _Broker:
    incarnation: int
    address: str
    heard_at: float


class Registry:
    """Brokers that have registered and sent a heartbeat within the time-out."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._brokers: dict[str, _Broker] = {}

    def register(self, name: str, incarnation: int, address: str, now: float) -> None:
        """Add a broker, or a new incarnation of it."""
        known = self._brokers.get(name)
        if known is None or known.incarnation <= incarnation:
            self._brokers[name] = _Broker(incarnation, address, now)

    def beat(self, name: str, incarnation: int, now: float) -> bool:
        """Note a heartbeat; return whether the broker is registered."""
        self._drop(now)
        known = self._brokers.get(name)
        if known is None or known.incarnation < incarnation:
            return False
        if known.incarnation == incarnation:  # an earlier one is not asked to register again
            known.heard_at = now
        return True

    def lookup(self, without: str, now: float) -> tuple[str, int, str] | None:
        """Return name, incarnation and address of a random broker beside one."""
        self._drop(now)
        others = [name for name in self._brokers if name != without]
        if not others:
            return None
        name = random.choice(others)  # noqa: S311
        broker = self._brokers[name]
        return name, broker.incarnation, broker.address

    def _drop(self, now: float) -> None:
        silent = [n for n, b in self._brokers.items() if now - b.heard_at > self._timeout_s]
        for name in silent:
            del self._brokers[name]


if __name__ == "__main__":
    count_strangers()
    sys.exit(main(sys.argv[1:]))
