"""The server over real sockets: who may ask, and what it answers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from dashboard_server import Served, served
from synthetic_feed import HTML, make_feed
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from dlctl.dashboard.serve import serve

ONE = "/api/trainings/digits-3k9f"


@pytest.fixture
def server() -> Iterator[Served]:
    with served(make_feed()) as running:
        yield running


def test_the_page_and_its_files_need_no_token_and_hold_no_training(server: Served):
    page = server.ask("/", x_dlctl_token="")
    assert page.status == 200
    assert b"digits" not in page.body
    assert server.ask("/static/main.js", x_dlctl_token="").status == 200
    assert server.ask("/static/../app.py", x_dlctl_token="").status == 404


@pytest.mark.parametrize("token", ["", "wrong", "ümlaut"])
def test_data_needs_the_token(server: Served, token: str):
    sent = token.encode().decode("latin-1")
    for path in ("/api/trainings", ONE, f"{ONE}/curves", "/api/changes", "/api/report"):
        assert server.ask(path, x_dlctl_token=sent).status == 401
    assert server.ask(f"{ONE}/halt", "POST", b"{}", x_dlctl_token=sent).status == 401
    assert server.feed.acts == []


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:{port}", "127.0.0.1", ""])
def test_another_host_name_is_refused(server: Served, host: str):
    named = host.format(port=server.host.rpartition(":")[2])
    assert server.ask("/api/trainings", host=named).status in (400, 421)


def test_localhost_is_this_machine(server: Served):
    port = server.host.rpartition(":")[2]
    assert server.ask("/api/trainings", host=f"localhost:{port}").status == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://attacker.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
     {"sec_fetch_site": "same-site"}],
)  # fmt: skip
def test_what_another_site_sends_is_refused_even_with_the_token(server: Served, headers):
    assert server.ask(f"{ONE}/halt", "POST", b"{}", **headers).status == 403
    assert server.feed.acts == []


def test_every_answer_forbids_what_does_not_come_from_this_server(server: Served):
    for path, token in (("/", ""), ("/api/trainings", server.token), ("/api/trainings", "")):
        answer = server.ask(path, x_dlctl_token=token)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "https:" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


def test_trainings_and_details(server: Served):
    rows = server.ask("/api/trainings").json
    assert [row["id"] for row in rows][0] == "digits-3k9f"
    assert rows[0]["live"] and rows[0]["gpu"] > 0 and len(rows[0]["left_s"]) == 3
    details = server.ask(ONE).json
    assert len(details["answers"]) == 6
    assert server.ask("/api/trainings/nobody").status == 404


def test_curves_of_a_window(server: Served):
    whole = server.ask(f"{ONE}/curves?width=50").json
    part = server.ask(f"{ONE}/curves?width=200&from=600&to=650&name=loss").json
    assert {curve["name"] for curve in part["curves"]} == {"loss"}
    train = part["curves"][0]
    assert train["x"][0] == 599 and train["x"][-1] == 651  # a neighbour on each side
    assert len(whole["curves"][0]["x"]) == 50
    assert whole["attempts"][1]["begin"] == 500


@pytest.mark.parametrize("query", ["x=mass", "from=nan", "smooth=1", "smooth=-1", "width=wide"])
def test_a_query_that_makes_no_sense_is_refused_with_a_sentence(server: Served, query: str):
    answer = server.ask(f"{ONE}/curves?{query}")
    assert answer.status == 400 and answer.json["error"]


def test_an_action_is_done_and_told(server: Served):
    told = server.ask(f"{ONE}/tune", "POST", b'{"lr": "0.01"}')
    assert told.status == 200 and "tune" in told.json["told"]
    assert server.feed.acts == [("digits-3k9f", "tune", {"lr": "0.01"})]


def test_a_refused_action_says_why(server: Served):
    answer = server.ask("/api/trainings/digits-2b7d/halt", "POST", b"{}")
    assert answer.status == 409 and "COMPLETED" in answer.json["error"]
    assert server.ask(f"{ONE}/halt", "GET").status == 405
    assert server.ask(f"{ONE}/halt", "POST", b"[]").status == 400
    assert server.ask(f"{ONE}/halt", "POST", b"{" + b" " * 100_000).status == 400


def test_changes_are_streamed_and_the_feed_knows_what_is_looked_at(server: Served):
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


def test_the_log_comes_over_a_websocket_as_it_grows(server: Served):
    url = f"ws://{server.host}/ws/trainings/digits-3k9f/logs"
    with connect(url, subprotocols=["dlctl", f"token.{server.token}"]) as socket:  # type: ignore[list-item]
        assert HTML in json.loads(socket.recv(30))["text"]
        server.feed.say("one more line")
        assert json.loads(socket.recv(30))["text"] == "one more line\n"


def test_a_websocket_needs_the_token_and_this_page(server: Served):
    url = f"ws://{server.host}/ws/trainings/digits-3k9f/logs"
    token = f"token.{server.token}"
    for protocols, origin in (["dlctl"], None), (["dlctl", token], "https://attacker.example"):
        with pytest.raises((InvalidStatus, ConnectionClosed)):
            connect(url, subprotocols=protocols, origin=origin).recv(30)  # type: ignore[arg-type]


def test_the_end_of_the_server_ends_open_streams():
    with served(make_feed()) as running:
        connection = http.client.HTTPConnection(running.host, timeout=60)
        connection.request("GET", "/api/changes", headers={"x-dlctl-token": running.token})
        stream = connection.getresponse()
        stream.readline()
    assert stream.read().endswith(b"\n\n")
    connection.close()


def test_the_browser_is_led_by_a_private_file_because_others_see_its_command(monkeypatch):
    feed, opened, told = make_feed(), [], []

    def look(way: str) -> None:
        path = Path(url2pathname(urlsplit(way).path))
        opened.append(
            (way, path.read_text(), path.stat().st_mode & 0o777, path.parent.stat().st_mode)
        )
        raise KeyboardInterrupt

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", look)
    with pytest.raises(KeyboardInterrupt):
        serve(feed, 0, "", open_browser=True, tell=told.append, warn=told.append)
    ((way, text, mode, folder_mode),) = opened
    token = told[0].partition("token=")[2]
    assert token in text and token not in way
    assert mode & 0o077 == 0 or folder_mode & 0o077 == 0
