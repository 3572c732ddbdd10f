"""The calls of `search.v1`: stubs for callers, handlers for servers, and who may call what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from search.protocol import messages as m

Q = TypeVar("Q", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

MAY_CALL = {
    "Nameserver": {
        "Register": {"broker"},
        "Heartbeat": {"broker"},
        "Lookup": {"broker", "worker", "model", "client"},
    },
    "Broker": {
        "Submit": {"model"},
        "Cancel": {"model"},
        "Results": {"model"},
        "Exchange": {"worker"},
        "Renew": {"worker"},
        "Lend": {"broker"},
        "Return": {"broker"},
        "Status": {"broker", "worker", "model", "client", "nameserver"},
    },
}
"""The roles that may make each call. A server refuses everybody else."""


class Call(Protocol, Generic[Q, R]):
    """One call of a stub."""

    def __call__(
        self, request: Q, /, *, timeout: float | None = None, wait_for_ready: bool | None = None
    ) -> Awaitable[R]:
        """Send the request; raise grpc.aio.AioRpcError if no answer comes in `timeout` seconds."""


class NameserverStub:
    """Calls a nameserver."""

    Register: Call[m.RegisterRequest, m.RegisterReply]
    Heartbeat: Call[m.HeartbeatRequest, m.HeartbeatReply]
    Lookup: Call[m.LookupRequest, m.LookupReply]

    def __init__(self, channel: grpc.aio.Channel) -> None:
        _bind(self, channel, "Nameserver")


class BrokerStub:
    """Calls a broker."""

    Submit: Call[m.SubmitRequest, m.SubmitReply]
    Cancel: Call[m.CancelRequest, m.CancelReply]
    Results: Call[m.ResultsRequest, m.ResultsReply]
    Exchange: Call[m.ExchangeRequest, m.ExchangeReply]
    Renew: Call[m.RenewRequest, m.RenewReply]
    Lend: Call[m.LendRequest, m.LendReply]
    Return: Call[m.ReturnRequest, m.ReturnReply]
    Status: Call[m.StatusRequest, m.StatusReply]

    def __init__(self, channel: grpc.aio.Channel) -> None:
        _bind(self, channel, "Broker")


def _methods(service: str) -> list[tuple[str, str, Any, Any]]:
    descriptor = m.DESCRIPTOR.services_by_name[service]
    return [
        (
            method.name,
            f"/{descriptor.full_name}/{method.name}",
            getattr(m, method.input_type.name),
            getattr(m, method.output_type.name),
        )
        for method in descriptor.methods
    ]


def _bind(stub: object, channel: grpc.aio.Channel, service: str) -> None:
    for name, path, request, reply in _methods(service):
        call = channel.unary_unary(
            path,
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )
        setattr(stub, name, call)


Answer = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]


def make_handler(service: str, servicer: object) -> grpc.GenericRpcHandler:
    """Return what answers the calls of a service by the servicer's methods of the same names.

    Each method is `async def Name(self, request, context) -> reply`.
    """
    methods = {}
    for name, _, request, reply in _methods(service):
        methods[name] = grpc.unary_unary_rpc_method_handler(
            _only(MAY_CALL[service][name], name, getattr(servicer, name)),
            request_deserializer=request.FromString,
            response_serializer=reply.SerializeToString,
        )
    full_name = m.DESCRIPTOR.services_by_name[service].full_name
    return grpc.method_handlers_generic_handler(full_name, methods)


def _only(roles: set[str], name: str, answer: Answer) -> Answer:
    allowed = {role.encode() for role in roles}

    async def guarded(request: Any, context: grpc.aio.ServicerContext) -> Any:
        shown = context.auth_context().get("x509_common_name", ())
        if not allowed.intersection(shown):
            role = b", ".join(shown).decode(errors="replace")
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"the role {role!r} may not call {name}"
            )
        return await answer(request, context)

    return guarded
