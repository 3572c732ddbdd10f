"""Who may connect, and who may call what: real servers and real certificates."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from event_loops import in_loop
from search_keys import write_keys

from dlctl.contract import search as files
from search.errors import SearchError
from search.protocol import messages as m
from search.protocol.channels import Credentials, open_channel, open_server
from search.protocol.stubs import BrokerStub, NameserverStub, make_handler


class Nameserver:
    async def Register(self, request: m.RegisterRequest, context: Any) -> m.RegisterReply:
        return m.RegisterReply()

    async def Heartbeat(self, request: m.HeartbeatRequest, context: Any) -> m.HeartbeatReply:
        return m.HeartbeatReply(register_again=True)

    async def Lookup(self, request: m.LookupRequest, context: Any) -> m.LookupReply:
        return m.LookupReply(broker="b")


@in_loop
async def serve(
    job_dir: Path, use: Callable[[str], Awaitable[None]], role: str = "nameserver"
) -> None:
    """Run `use` with the address of a nameserver."""
    handlers = [make_handler("Nameserver", Nameserver())]
    server, address = open_server("127.0.0.1", Credentials.load(job_dir, role), handlers)
    await server.start()
    try:
        await use(address)
    finally:
        await server.stop(None)


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    write_keys(tmp_path / "ours")
    return tmp_path / "ours"


async def beat(address: str, credentials: Credentials) -> m.HeartbeatReply:
    async with open_channel(address, credentials) as channel:
        return await NameserverStub(channel).Heartbeat(m.HeartbeatRequest(broker="b"), timeout=60)


def test_the_right_role_is_answered(job_dir: Path) -> None:
    async def use(address: str) -> None:
        reply = await beat(address, Credentials.load(job_dir, "broker"))
        assert reply.register_again

    serve(job_dir, use)


@pytest.mark.parametrize("role", ["worker", "model", "client", "nameserver"])
def test_another_role_is_refused(job_dir: Path, role: str) -> None:
    async def use(address: str) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await beat(address, Credentials.load(job_dir, role))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert caught.value.details() == f"the role '{role}' may not call Heartbeat"

    serve(job_dir, use)


def test_a_stranger_with_an_authority_of_his_own_is_refused(job_dir: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "theirs")

    async def use(address: str) -> None:
        theirs, ours = (Credentials.load(tmp_path / each, "broker") for each in ("theirs", "ours"))
        for stranger in (
            theirs,
            Credentials("broker", ours.authority, theirs.certificate, theirs.key),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await beat(address, stranger)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    serve(job_dir, use)


def test_a_caller_without_a_certificate_is_refused(job_dir: Path) -> None:
    async def use(address: str) -> None:
        tls = grpc.ssl_channel_credentials((job_dir / files.KEYS / "ca.pem").read_bytes())
        options = [("grpc.ssl_target_name_override", "search.dlctl")]
        async with grpc.aio.secure_channel(address, tls, options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await NameserverStub(channel).Lookup(m.LookupRequest(), timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await NameserverStub(channel).Lookup(m.LookupRequest(), timeout=60)

    serve(job_dir, use)


def test_a_worker_can_not_pose_as_a_server(job_dir: Path) -> None:
    async def use(address: str) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await beat(address, Credentials.load(job_dir, "broker"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    serve(job_dir, use, role="worker")


def test_another_version_of_the_protocol_is_told_apart(job_dir: Path) -> None:
    async def use(address: str) -> None:
        async with open_channel(address, Credentials.load(job_dir, "model")) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await BrokerStub(channel).Submit(m.SubmitRequest(), timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    serve(job_dir, use)


def test_a_proxy_in_the_environment_is_not_used(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    test_the_right_role_is_answered(job_dir)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="credentials of the role 'worker'.*worker.pem|ca.pem"):
        Credentials.load(tmp_path, "worker")


def test_another_version_of_the_protocol_is_refused_in_a_sentence(tmp_path: Path) -> None:
    write_keys(tmp_path)

    async def use(address: str) -> None:
        async with open_channel(address, Credentials.load(tmp_path, "worker")) as channel:
            for method in ("/search.v2.Broker/Exchange", "/search.v1.Nameserver/Guess"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(method)(b"what it says", timeout=60)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
                assert caught.value.details() == (
                    f"{method} is not known here, where search.v1 is spoken: use the version of "
                    "dlctl that is in the job directory's runtime"
                )

    serve(tmp_path, use)
