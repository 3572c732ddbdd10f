"""What a broker asks others: the nameserver for peers, and peers for work when workers are idle."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import grpc.aio

from search.broker.service import BrokerService
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel
from search.protocol.endpoints import Endpoint, read_endpoints, read_nameserver
from search.protocol.stubs import BrokerStub, NameserverStub

_ASK_EACH_S = 0.02
_SOON_S = 0.5
_MOST_LENT = 256
_CALL_S = 5.0


class Peers:
    """The other brokers and the nameserver, as one broker sees them."""

    def __init__(
        self, job_dir: Path, own: Endpoint, service: BrokerService, heartbeat_s: float
    ) -> None:
        self._job_dir, self._own, self._service = job_dir, own, service
        self._heartbeat_s = heartbeat_s
        self._credentials = Credentials.load(job_dir, "broker")
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._returning: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Close the connections."""
        for task in self._returning.values():
            task.cancel()
        await asyncio.gather(*self._returning.values(), return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = open_channel(address, self._credentials)
        return self._channels[address]

    # The nameserver -----------------------------------------------------------------------------

    async def heartbeats(self) -> None:
        """Register, and say each heartbeat that this broker lives, for ever."""
        registered_at = ""
        while True:
            nameserver = read_nameserver(self._job_dir)
            if nameserver is not None:
                try:
                    registered_at = await self._beat(nameserver.address, registered_at)
                except grpc.aio.AioRpcError:  # it is gone: its successor writes another file
                    registered_at = ""
            await asyncio.sleep(self._heartbeat_s)

    async def _beat(self, address: str, registered_at: str) -> str:
        stub = NameserverStub(self._channel(address))
        own = self._own
        if registered_at == address:
            beat = m.HeartbeatRequest(broker=own.name, incarnation=own.incarnation)
            reply = await stub.Heartbeat(beat, timeout=_CALL_S)
            if not reply.register_again:
                return address
        register = m.RegisterRequest(
            broker=own.name, incarnation=own.incarnation, address=own.address
        )
        await stub.Register(register, timeout=_CALL_S)
        return address

    async def _find_peer(self) -> Endpoint | None:
        """Return a random other broker: from the nameserver, or from the endpoints' files."""
        nameserver = read_nameserver(self._job_dir)
        if nameserver is not None:
            try:
                stub = NameserverStub(self._channel(nameserver.address))
                ask = m.LookupRequest(except_broker=self._own.name)
                found = await stub.Lookup(ask, timeout=1.0)
                if not found.broker:
                    return None
                return Endpoint(found.broker, found.incarnation, found.address)
            except grpc.aio.AioRpcError:
                pass
        others = [each for each in read_endpoints(self._job_dir) if each.name != self._own.name]
        return random.choice(others) if others else None  # noqa: S311

    # Helping others -----------------------------------------------------------------------------

    async def borrow(self) -> None:
        """Ask a random peer for work while own workers are idle, for ever.

        Each time that the loan is used up at once, the next one is twice as large.
        """
        times, borrowed_at = 1, 0.0
        while True:
            await asyncio.sleep(_ASK_EACH_S)
            idle = self._service.idle_workers()
            if not idle:
                continue
            soon = time.monotonic() - borrowed_at < _SOON_S
            times = times * 2 if soon else max(1, times // 2)
            want = min(_MOST_LENT, times * sum(each.want + each.ahead for each in idle))
            peer = await self._find_peer()
            if peer is not None and await self._borrow_from(peer, want, idle):
                borrowed_at = time.monotonic()
            else:
                await asyncio.sleep(self._heartbeat_s / 2)

    async def _borrow_from(self, peer: Endpoint, want: int, idle: list[m.ExchangeRequest]) -> bool:
        freest = max(idle, key=lambda each: (each.free.gpus, each.free.cpus))
        request = m.LendRequest(
            broker=self._own.name,
            incarnation=self._own.incarnation,
            want=want,
            free=freest.free,
            seconds_left=freest.seconds_left,
        )
        try:
            reply = await BrokerStub(self._channel(peer.address)).Lend(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError:
            return False
        self._service.queues.help(peer.name, reply.leases)
        if reply.leases:
            self._service.work.ring()
            self._attend(peer.name)
        return bool(reply.leases)

    def _attend(self, owner: str) -> None:
        running = self._returning.get(owner)
        if running is None or running.done():
            self._returning[owner] = asyncio.create_task(self._return_to(owner))

    async def attend_all(self) -> None:
        """Bring results back that an earlier incarnation kept."""
        for owner in self._service.queues.owners():
            self._attend(owner)

    async def _return_to(self, owner: str) -> None:
        """Bring results back to their owner, and renew what runs here, until nothing is left."""
        service, queues = self._service, self._service.queues
        renewed_at = 0.0
        while owner in queues.owners():
            results = list(queues.helped.get(owner, {}).values())[:_MOST_LENT]
            due = time.monotonic() - renewed_at > self._heartbeat_s
            if not results and not due:
                await service.results.wait_until(
                    lambda: bool(queues.helped.get(owner)), self._heartbeat_s
                )
                continue
            request = m.ReturnRequest(
                broker=self._own.name,
                incarnation=self._own.incarnation,
                results=[each.result for each in results],
                running=queues.helping(owner) if due else [],
            )
            reply = await self._return_once(owner, request)
            if reply is None:
                await asyncio.sleep(self._heartbeat_s / 2)
                continue
            if due:
                renewed_at = time.monotonic()
            queues.given_back(owner, reply.taken)
            queues.drop_helped(owner, [a.task_id for a in reply.answers if a.order == m.STOP])
            service.stop_orders()

    async def _return_once(self, owner: str, request: m.ReturnRequest) -> m.ReturnReply | None:
        """Call the owner where it listens now; None if it does not answer."""
        for endpoint in read_endpoints(self._job_dir):
            if endpoint.name == owner:
                try:
                    stub = BrokerStub(self._channel(endpoint.address))
                    return await stub.Return(request, timeout=_CALL_S)
                except grpc.aio.AioRpcError:
                    return None
        return None
