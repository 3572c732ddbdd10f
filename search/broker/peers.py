"""A broker's calls: to the nameserver for peers, and to peers for work while workers are idle."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

import grpc.aio

from search.broker.service import MOST_REPLY_BYTES, BrokerService
from search.protocol import messages as m
from search.protocol.channels import Credentials, first_fitting, open_channel
from search.protocol.endpoints import Endpoint, read_endpoint, read_endpoints, read_nameserver
from search.protocol.stubs import BrokerStub, NameserverStub

_ASK_EACH_S = 0.005
_SOON_S = 0.5
_MOST_LENT = 2000
_MOST_RETURNED = 500
_MOST_PEERS = 3
"""How many random peers are asked for work before a pause."""
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
        self._lender = ""
        """The peer that lent last: it may have more."""
        self._attending: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._asking: asyncio.Future[list[m.Lease]] | None = None
        """The newest call that asks a peer for work."""

    async def close(self) -> None:
        """Close the connections."""
        for task in self._attending.values():
            task.cancel()
        await asyncio.gather(*self._attending.values(), return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._close_unused()
            self._channels[address] = open_channel(address, self._credentials)
        return self._channels[address]

    def _close_unused(self) -> None:
        """Close the channels to where nobody listens any more: brokers come and go."""
        listen = {each.address for each in read_endpoints(self._job_dir)}
        if nameserver := read_nameserver(self._job_dir):
            listen.add(nameserver.address)
        for address in self._channels.keys() - listen:
            asyncio.ensure_future(self._channels.pop(address).close())

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
            with contextlib.suppress(grpc.aio.AioRpcError):
                stub = NameserverStub(self._channel(nameserver.address))
                ask = m.LookupRequest(except_broker=self._own.name)
                found = await stub.Lookup(ask, timeout=1.0)
                if found.broker:
                    return Endpoint(found.broker, found.incarnation, found.address)
        others = [each for each in read_endpoints(self._job_dir) if each.name != self._own.name]
        return random.choice(others) if others else None  # noqa: S311

    # Helping others -----------------------------------------------------------------------------

    async def borrow(self) -> None:
        """Ask a random peer for work while own workers are idle, for ever.

        A loan that is half used up soon was too small: the next one is twice as large, and is asked
        for before workers are idle again.
        """
        want, borrowed_at = 0, 0.0
        idle: list[m.ExchangeRequest] = []
        while True:
            soon = time.monotonic() - borrowed_at < _SOON_S
            waiting = self._service.idle_workers()
            if not waiting and not (soon and self._service.queues.helping_count < want / 2):
                await asyncio.sleep(_ASK_EACH_S)
                continue
            idle = waiting or idle
            least = sum(each.want + each.ahead for each in idle)
            want = min(_MOST_LENT, max(least, want * 2 if soon else want // 2))
            if await self._borrow_some(want, idle):
                borrowed_at = time.monotonic()
            else:
                borrowed_at = 0.0
                await asyncio.sleep(self._heartbeat_s / 4)

    async def _borrow_some(self, want: int, idle: list[m.ExchangeRequest]) -> bool:
        """Ask who lent last, and then some random peers."""
        lender = read_endpoint(self._job_dir, self._lender) if self._lender else None
        if lender is not None and await self._borrow_from(lender, want, idle):
            return True
        peer_names = {self._lender}
        for _ in range(_MOST_PEERS):
            peer = await self._find_peer()
            if peer is None or peer.name in peer_names:
                continue
            peer_names.add(peer.name)
            if await self._borrow_from(peer, want, idle):
                self._lender = peer.name
                return True
        return False

    async def _borrow_from(self, peer: Endpoint, want: int, idle: list[m.ExchangeRequest]) -> bool:
        freest = max(idle, key=lambda each: (each.free.gpus, each.free.cpus))
        request = m.LendRequest(
            broker=self._own.name,
            want=want,
            free=freest.has if freest.ahead else freest.free,
            seconds_left=freest.seconds_left,
            types=freest.types,
        )
        self._asking = asyncio.ensure_future(self._take_loan(peer, request))
        return bool(await asyncio.shield(self._asking))

    async def _take_loan(self, peer: Endpoint, request: m.LendRequest) -> list[m.Lease]:
        try:
            reply = await BrokerStub(self._channel(peer.address)).Lend(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError:
            return []
        leases = list(reply.leases)
        self._service.queues.help(peer.name, leases)
        if leases:
            self._service.work.notify()
            self._attend(peer.name)
        return leases

    async def settle(self) -> None:
        """Wait for the loan that was asked for last: a peer may have given its tasks away."""
        if self._asking is not None:
            await asyncio.wait([self._asking])

    def _attend(self, owner: str) -> None:
        """Bring results to an owner and renew its leases. Each ends by itself, with the last."""
        for number, attend in enumerate((self._bring_results, self._renew, self._renew_later)):
            running = self._attending.get((owner, number))
            if running is None or running.done():
                self._attending[owner, number] = asyncio.ensure_future(attend(owner))

    def attend_all(self) -> None:
        """Bring results back that an earlier incarnation kept."""
        for owner in list(self._service.queues.results.helped):
            self._attend(owner)

    async def _bring_results(self, owner: str) -> None:
        """Bring results back to their owner until nothing of it is left."""
        service, queues = self._service, self._service.queues
        while queues.has_of(owner):
            some = first_fitting(
                queues.results.helped.get(owner, {}).values(), lambda each: len(each.result.value),
                _MOST_RETURNED, MOST_REPLY_BYTES,
            )  # fmt: skip
            if not some:
                await service.results.wait_until(
                    lambda: bool(queues.results.helped.get(owner)), self._heartbeat_s
                )
                continue
            request = m.ReturnRequest(results=[each.result for each in some])
            reply = await self._return(owner, request)
            if reply is not None:
                queues.results.given_back(owner, reply.taken)

    async def _renew(self, owner: str) -> None:
        """Renew the leases of what runs here. If the call breaks, the owner knows at once.

        Two calls overlap, for one of them to wait at any moment.
        """
        queues = self._service.queues
        while queues.has_of(owner):
            running = queues.helping(owner)
            if not running:
                await asyncio.sleep(self._heartbeat_s / 5)
                continue
            request = m.ReturnRequest(running=running, wait_s=2 * self._heartbeat_s)
            reply = await self._return(owner, request)
            if reply is not None:
                ids = [each.task_id for each in reply.answers if each.order == m.STOP]
                queues.drop_helped(owner, ids)
                self._service.orders.notify()

    async def _renew_later(self, owner: str) -> None:
        await asyncio.sleep(self._heartbeat_s)
        await self._renew(owner)

    async def _return(self, owner: str, request: m.ReturnRequest) -> m.ReturnReply | None:
        """Call the owner where it listens now; None, after a while, if it does not answer."""
        request.broker = self._own.name
        endpoint = read_endpoint(self._job_dir, owner)
        if endpoint is None:  # nothing is left of it: nobody wants its results
            self._service.queues.forget_owner(owner)
            return None
        stub = BrokerStub(self._channel(endpoint.address))
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await stub.Return(request, timeout=request.wait_s + _CALL_S)
        await asyncio.sleep(self._heartbeat_s / 2)
        return None
