"""Strangers of the same machine can't take the server from its user."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from dashboard_server import Served, served
from synthetic_feed import make_feed

from dlctl.web import connections as limits

ONE = "/api/trainings/digits-3k9f"


@pytest.fixture
def server() -> Iterator[Served]:
    with served(make_feed()) as running:
        yield running


def connected(server: Served, sent: bytes = b"") -> socket.socket:
    host, port = server.host.split(":")
    made = socket.create_connection((host, int(port)), timeout=30)
    made.sendall(sent)
    return made


def is_ended(stranger: socket.socket) -> bool:
    """Wait until the server has ended a connection without an answer."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def test_of_many_idle_connections_the_oldest_end_and_nothing_is_printed(server: Served, capfd):
    strangers = []
    try:
        for _ in range(3 * limits.MOST_WAITING):
            strangers.append(connected(server))
        assert all(is_ended(each) for each in strangers[: 2 * limits.MOST_WAITING])
        assert server.ask("/api/trainings").status == 200
    finally:
        for each in strangers:
            each.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET / HT", b"POST " + ONE.encode() + b"/halt HTTP/1.1\r\ncontent-length: 9\r\n"],
)
def test_a_request_that_does_not_come_to_an_end_is_given_up(
    server: Served, monkeypatch, begun: bytes
):
    monkeypatch.setattr(limits, "REQUEST_S", 0.3)
    with connected(server, begun) as stranger:
        assert is_ended(stranger)


def test_a_stream_that_waits_for_news_stays(server: Served, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_S", 0.3)
    request = (
        f"GET /api/changes HTTP/1.1\r\nhost: {server.host}\r\nx-dlctl-token: {server.token}\r\n\r\n"
    )
    with connected(server, request.encode()) as page, connected(server) as stranger:
        assert page.recv(20).startswith(b"HTTP/1.1 200")
        assert is_ended(stranger), "its time is up later than that of the stream would be"
        page.settimeout(0.05)
        with pytest.raises(TimeoutError):
            while page.recv(4096):
                pass


def test_too_long_a_body_is_refused_before_it_has_come(server: Served):
    head = f"POST {ONE}/halt HTTP/1.1\r\nhost: {server.host}\r\nx-dlctl-token: {server.token}\r\n"
    for length in ("content-length: 900000000", "transfer-encoding: chunked"):
        with connected(server, f"{head}{length}\r\n\r\n".encode()) as page:
            if "chunked" in length:
                page.sendall(b"20000\r\n" + bytes(0x20000) + b"\r\n")  # and no end
            assert page.recv(12) == b"HTTP/1.1 400"
    assert server.feed.acts == []


def test_an_answer_is_sent_at_once():
    """Each took 40 ms where asyncio did not know that the socket is TCP's."""
    with limits.listen(0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
