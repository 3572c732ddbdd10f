"""Who may connect, who may call what, and where processes listen: real servers and certificates."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from event_loops import in_loop
from repository import REPOSITORY
from search_keys import write_keys

import search.protocol
from dlctl.contract import search as files
from search.errors import SearchError
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel, open_server
from search.protocol.endpoints import (
    NAMESERVER,
    Endpoint,
    read_endpoints,
    read_nameserver,
    write_endpoint,
)
from search.protocol.stubs import BrokerStub, NameserverStub, make_handler


class Nameserver:
    async def Register(self, request: m.RegisterRequest, context: Any) -> m.RegisterReply:
        return m.RegisterReply()

    async def Heartbeat(self, request: m.HeartbeatRequest, context: Any) -> m.HeartbeatReply:
        return m.HeartbeatReply(register_again=True)

    async def Lookup(self, request: m.LookupRequest, context: Any) -> m.LookupReply:
        return m.LookupReply(broker="b")


@asynccontextmanager
async def serving(job_dir: Path, role: str = "nameserver") -> AsyncIterator[str]:
    """Yield the address of a nameserver."""
    handlers = [make_handler("Nameserver", Nameserver())]
    server, address = open_server("127.0.0.1", Credentials.load(job_dir, role), handlers)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    write_keys(tmp_path / "ours")
    return tmp_path / "ours"


async def beat(address: str, credentials: Credentials) -> m.HeartbeatReply:
    async with open_channel(address, credentials) as channel:
        return await NameserverStub(channel).Heartbeat(m.HeartbeatRequest(broker="b"), timeout=60)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
@in_loop
async def test_the_right_role_is_answered_and_a_proxy_in_the_environment_is_not_used(
    job_dir, monkeypatch, proxy
):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, proxy)
    async with serving(job_dir) as address:
        assert (await beat(address, Credentials.load(job_dir, "broker"))).register_again


@in_loop
async def test_other_roles_and_strangers_are_refused(job_dir, tmp_path):
    """A stranger has an authority of his own, or no certificate."""
    write_keys(tmp_path / "theirs")
    theirs, ours = (Credentials.load(tmp_path / each, "broker") for each in ("theirs", "ours"))
    stranger = Credentials("broker", ours.authority, theirs.certificate, theirs.key)
    tls = grpc.ssl_channel_credentials((job_dir / files.KEYS / "ca.pem").read_bytes())
    options = [("grpc.ssl_target_name_override", "search.dlctl")]
    async with serving(job_dir) as address:
        for role in ("worker", "model", "client", "nameserver"):
            code, why = await refusal(beat(address, Credentials.load(job_dir, role)))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert why == f"the role '{role}' may not call Heartbeat"
        for each in (theirs, stranger):
            assert (await refusal(beat(address, each)))[0] is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.secure_channel(address, tls, options=options) as channel:
            lookup = NameserverStub(channel).Lookup(m.LookupRequest(), timeout=60)
            assert (await refusal(lookup))[0] is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(address) as channel:
            await refusal(NameserverStub(channel).Lookup(m.LookupRequest(), timeout=60))
    async with serving(job_dir, "worker") as address:  # which can't pose as a server
        assert (await refusal(beat(address, ours)))[0] is grpc.StatusCode.UNAVAILABLE


@in_loop
async def test_another_version_of_the_protocol_is_refused_in_a_sentence(job_dir):
    async with serving(job_dir) as address:
        async with open_channel(address, Credentials.load(job_dir, "model")) as channel:
            code, _ = await refusal(BrokerStub(channel).Submit(m.SubmitRequest(), timeout=60))
            assert code is grpc.StatusCode.UNIMPLEMENTED
        async with open_channel(address, Credentials.load(job_dir, "worker")) as channel:
            for method in ("/search.v2.Broker/Exchange", "/search.v1.Nameserver/Guess"):
                call = channel.unary_unary(method)(b"what it says", timeout=60)
                assert await refusal(call) == (
                    grpc.StatusCode.UNIMPLEMENTED,
                    f"{method} is not known here, where search.v1 is spoken: use the version of "
                    "dlctl that is in the job directory's runtime",
                )


def test_missing_keys_are_named(tmp_path):
    with pytest.raises(SearchError, match="credentials of the role 'worker'.*worker.pem|ca.pem"):
        Credentials.load(tmp_path, "worker")


def test_the_stored_messages_are_those_that_the_proto_compiles_to(tmp_path):
    subprocess.run([REPOSITORY / ".ci/make-protocol", tmp_path], check=True)
    for name in ("search.binpb", "messages.pyi"):
        stored = Path(search.protocol.__file__).with_name(name)
        assert (tmp_path / name).read_bytes() == stored.read_bytes(), (
            f"run .ci/make-protocol: {name}"
        )
    assert m.Outcome.Name(m.SUCCEEDED) == "SUCCEEDED"
    assert m.Outcome.Value("HANDED_BACK") == m.HANDED_BACK


def test_the_newest_endpoints_of_brokers_and_of_the_nameserver_are_found(tmp_path):
    assert (read_endpoints(tmp_path), read_nameserver(tmp_path)) == ([], None)
    first, second = Endpoint("b1", 2, "n3:4000"), Endpoint("b2", 7, "n2:4000")
    nameserver = Endpoint(NAMESERVER, 1, "n1:4001")
    for endpoint in (second, nameserver, Endpoint("b1", 1, "n1:4000"), first):
        write_endpoint(tmp_path, endpoint)
    (tmp_path / files.ENDPOINTS / "b3.json").write_text("{")
    assert read_endpoints(tmp_path) == [first, second]
    assert read_nameserver(tmp_path) == nameserver
