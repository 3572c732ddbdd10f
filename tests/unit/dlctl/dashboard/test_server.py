"""The server over real sockets: who may ask, what it answers, and what strangers can't take."""

import http.client
import json
import socket

import pytest
from dashboard_server import served
from synthetic_feed import HTML, make_feed
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from dlctl.web import connections as limits

ONE = "/api/trainings/digits-3k9f"


@pytest.fixture
def server():
    with served(make_feed()) as running:
        yield running


def test_the_page_and_its_files_need_no_token_and_hold_no_training(server):
    page = server.ask("/", x_dlctl_token="")
    assert page.status == 200
    assert b"digits" not in page.body
    assert server.ask("/static/main.js", x_dlctl_token="").status == 200
    assert server.ask("/static/../app.py", x_dlctl_token="").status == 404


@pytest.mark.parametrize(("headers", "statuses"), [
    *(({"x_dlctl_token": token.encode().decode("latin-1")}, {401})
      for token in ("", "wrong", "ümlaut")),
    *(({"host": host}, {400, 421})
      for host in ("attacker.example", "attacker.example:{port}", "127.0.0.1", "")),
    # What another site sends is refused even with the token.
    *((headers, {403}) for headers in (
        {"origin": "https://attacker.example"}, {"origin": "null"},
        {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"},
    )),
])  # fmt: skip
def test_data_needs_the_token_this_host_and_this_page(server, headers, statuses):
    port = server.host.rpartition(":")[2]
    headers = {name: text.format(port=port) for name, text in headers.items()}
    assert server.ask(f"{ONE}/halt", "POST", b"{}", **headers).status in statuses
    if 403 not in statuses:
        for path in ("/api/trainings", ONE, f"{ONE}/curves", "/api/changes", "/api/report"):
            assert server.ask(path, **headers).status in statuses
    assert server.feed.acts == []


def test_every_answer_forbids_what_does_not_come_from_this_server(server):
    for path, token in (("/", ""), ("/api/trainings", server.token), ("/api/trainings", "")):
        answer = server.ask(path, x_dlctl_token=token)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "https:" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


def test_trainings_and_details(server):
    port = server.host.rpartition(":")[2]
    rows = server.ask("/api/trainings", host=f"localhost:{port}").json
    assert [row["id"] for row in rows][0] == "digits-3k9f"
    assert rows[0]["live"] and rows[0]["gpu"] > 0 and len(rows[0]["left_s"]) == 3
    details = server.ask(ONE).json
    assert len(details["answers"]) == 6
    assert server.ask("/api/trainings/nobody").status == 404


def test_curves_of_a_window(server):
    whole = server.ask(f"{ONE}/curves?width=50").json
    part = server.ask(f"{ONE}/curves?width=200&from=600&to=650&name=loss").json
    assert {curve["name"] for curve in part["curves"]} == {"loss"}
    train = part["curves"][0]
    assert train["x"][0] == 599 and train["x"][-1] == 651  # a neighbour on each side
    assert len(whole["curves"][0]["x"]) == 50
    assert whole["attempts"][1]["begin"] == 500


@pytest.mark.parametrize("query", ["x=mass", "from=nan", "smooth=1", "smooth=-1", "width=wide"])
def test_a_query_that_makes_no_sense_is_refused_with_a_sentence(server, query):
    answer = server.ask(f"{ONE}/curves?{query}")
    assert answer.status == 400 and answer.json["error"]


def test_an_action_is_done_and_told(server):
    told = server.ask(f"{ONE}/tune", "POST", b'{"lr": "0.01"}')
    assert told.status == 200 and "tune" in told.json["told"]
    assert server.feed.acts == [("digits-3k9f", "tune", {"lr": "0.01"})]
    answer = server.ask("/api/trainings/digits-2b7d/halt", "POST", b"{}")
    assert answer.status == 409 and "COMPLETED" in answer.json["error"]
    assert server.ask(f"{ONE}/halt", "GET").status == 405
    assert server.ask(f"{ONE}/halt", "POST", b"[]").status == 400
    assert server.ask(f"{ONE}/halt", "POST", b"{" + b" " * 100_000).status == 400


def test_changes_are_streamed_and_the_feed_knows_what_is_looked_at(server):
    connection = http.client.HTTPConnection(server.host, timeout=60)
    connection.request("GET", "/api/changes?id=digits-3k9f", headers={
        "x-dlctl-token": server.token})  # fmt: skip
    stream = connection.getresponse()
    assert stream.readline() == b"data: []\n"
    assert server.feed.looked == [("digits-3k9f",)]
    server.feed.grow("digits-3k9f", 5)
    assert stream.readline() == b"\n"
    assert json.loads(stream.readline().removeprefix(b"data: ")) == ["digits-3k9f"]
    connection.close()


def test_the_log_comes_over_a_websocket_as_it_grows(server):
    url = f"ws://{server.host}/ws/trainings/digits-3k9f/logs"
    with connect(url, subprotocols=["dlctl", f"token.{server.token}"]) as log:
        assert HTML in json.loads(log.recv(30))["text"]
        server.feed.say("one more line")
        assert json.loads(log.recv(30))["text"] == "one more line\n"


def test_a_websocket_needs_the_token_and_this_page(server):
    url = f"ws://{server.host}/ws/trainings/digits-3k9f/logs"
    token = f"token.{server.token}"
    for protocols, origin in (["dlctl"], None), (["dlctl", token], "https://attacker.example"):
        with pytest.raises((InvalidStatus, ConnectionClosed)):
            connect(url, subprotocols=protocols, origin=origin).recv(30)


def test_the_end_of_the_server_ends_open_streams():
    with served(make_feed()) as running:
        connection = http.client.HTTPConnection(running.host, timeout=60)
        connection.request("GET", "/api/changes", headers={"x-dlctl-token": running.token})
        stream = connection.getresponse()
        stream.readline()
    assert stream.read().endswith(b"\n\n")
    connection.close()


# Strangers of the same machine --------------------------------------------------------------------


def connected(server, sent=b""):
    host, port = server.host.split(":")
    made = socket.create_connection((host, int(port)), timeout=30)
    made.sendall(sent)
    return made


def is_ended(stranger):
    """Wait until the server has ended a connection without an answer."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def test_of_many_idle_connections_the_oldest_end_and_nothing_is_printed(server, capfd):
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
def test_a_request_that_does_not_come_to_an_end_is_given_up(server, monkeypatch, begun):
    monkeypatch.setattr(limits, "REQUEST_S", 0.3)
    with connected(server, begun) as stranger:
        assert is_ended(stranger)


def test_a_stream_and_a_websocket_that_wait_for_news_stay(server, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_S", 0.3)
    request = (
        f"GET /api/changes HTTP/1.1\r\nhost: {server.host}\r\nx-dlctl-token: {server.token}\r\n\r\n"
    )
    url = f"ws://{server.host}/ws{ONE.removeprefix('/api')}/logs"
    protocols = ["dlctl", f"token.{server.token}"]
    with connected(server, request.encode()) as page, connect(url, subprotocols=protocols) as log:
        assert page.recv(20).startswith(b"HTTP/1.1 200")
        log.recv(30)
        for _ in range(2):
            with connected(server) as stranger:
                assert is_ended(stranger), "its time is up later than that of the streams would be"
        page.settimeout(0.05)
        with pytest.raises(TimeoutError):
            while page.recv(4096):
                pass
        log.ping().wait(30)
        assert log.protocol.close_code is None


def test_too_long_a_body_is_refused_before_it_has_come(server):
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
