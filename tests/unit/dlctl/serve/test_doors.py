"""The server lets in its user alone, and bounds what a request may bring."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
import subprocess
import time
from contextlib import closing, suppress

import pytest
import websockets.sync.client
from rest_server import RestServer, running
from websockets.exceptions import InvalidStatus

from dlctl.errors import Misused, RecordError
from dlctl.serve import app, guard, run
from dlctl.serve.desk import Desk
from dlctl.web import connections

LIST = "/api/v1/trainings"


def begun(server: RestServer, header: str) -> bytes:
    lines = [
        f"POST {LIST} HTTP/1.1", f"host: 127.0.0.1:{server.port}", header,
        f"authorization: Bearer {server.token}", "content-type: application/json", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 200),
    ({"authorization": ""}, 401),
    ({"authorization": "Bearer nonsense"}, 401),
    ({"authorization": "Basic nonsense"}, 401),
    ({"host": "evil.example"}, 421),
    ({"origin": "http://evil.example"}, 403),
    ({"sec_fetch_site": "cross-site"}, 403),
])  # fmt: skip
def test_only_the_user_is_let_in(server, headers, status):
    assert server.ask(LIST, **headers).status == status
    older = server.ask("/v1/models", **headers)
    assert older.status == status and (status == 200 or older.json["code"] == status)


def test_a_body_of_two_lengths_ends_the_connection(server):
    both = begun(server, "content-length: 2\r\ntransfer-encoding: chunked")
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as stranger:
        stranger.sendall(both + b"2\r\n{}\r\n0\r\n\r\n" + begun(server, "content-length: 0"))
        with stranger.makefile("rb") as told:
            assert told.read().count(b"HTTP/1.1 400") == 1


def test_what_tells_nothing_of_the_user_needs_no_token(server):
    for path in ("/docs", "/openapi.json", "/api/v1/health"):
        assert server.ask(path, authorization="").status == 200
        address = f"ws://127.0.0.1:{server.port}{path}"
        with pytest.raises(InvalidStatus) as refused:
            websockets.sync.client.connect(address)
        assert refused.value.response.status_code == 403, "no WebSocket is there"
    for path in ("/api/v1/trainings/../sites", "/api/v1/trainings/..%2f..%2fetc%2fpasswd"):
        assert server.ask(path).status == 404, "a path that climbs leads nowhere"


@pytest.mark.parametrize("head", ["content-length: 53687091200", "transfer-encoding: chunked"])
def test_a_body_without_end_is_refused_in_bounded_memory(server, monkeypatch, head):
    monkeypatch.setattr(connections, "REQUEST_S", 2.0)
    until = time.monotonic() + 30
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as stranger:
        stranger.sendall(begun(server, head))
        with suppress(OSError):
            while time.monotonic() < until:
                stranger.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    assert time.monotonic() < until, "it was taken"
    assert server.ask(LIST).status == 200


def test_a_form_that_is_larger_than_it_may_be_is_refused(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(app, "MOST_BODY_BYTES", 100_000)
    with running(desk, run.Place()) as port:
        server = RestServer({"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path, port)
        head = b"--x\r\ncontent-disposition: form-data; name=code; filename=c\r\n\r\n"
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        asked = begun(server, "transfer-encoding: chunked").replace(
            b"application/json", b"multipart/form-data; boundary=x"
        )
        with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as stranger:
            stranger.sendall(asked + b"%x\r\n%b\r\n" % (len(head), head) + 3 * chunk)
            assert b" 413 " in stranger.recv(100)


def test_a_long_upload_outlives_strangers_and_only_has_to_go_on(server, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)
    monkeypatch.setattr(connections, "MOST_WAITING", 4)
    body = b'{"manifest": "' + b"x" * 100 + b'"}'
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as upload:
        upload.sendall(begun(server, f"content-length: {len(body)}"))
        strangers = []
        for place in range(0, len(body), 20):
            upload.sendall(body[place : place + 20])
            strangers.append(socket.create_connection(("127.0.0.1", server.port)))
            time.sleep(0.3)
        assert b"422" in upload.recv(100), "the manifest is wrong, but it has arrived"
        for each in strangers:
            each.close()


def test_strangers_that_begin_no_tls_keep_nobody_out(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MOST_WAITING", 4)
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x",
            "-keyout", key, "-out", certificate]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True)
    with running(desk, run.Place(certificate=certificate, key=key)) as port:
        strangers = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(9)]
        trusted = ssl.create_default_context(cafile=certificate)
        trusted.check_hostname = False
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=trusted)
        client.request("GET", "/api/v1/health")
        assert client.getresponse().status == 200
        client.close()
        assert [each.recv(1) for each in strangers[:5]] == [b""] * 5
        for each in strangers:
            each.close()


def test_a_port_that_is_taken_is_told_with_a_way_out(desk, server):
    taken = run.Place(port=server.port)
    with pytest.raises(RecordError, match="in use") as told, run.prepared(desk, taken):
        pass
    assert "--port 0" in told.value.hint


def test_a_wrong_request_is_told_whole_and_says_what_to_send(server):
    no_token = server.ask(LIST, authorization="")
    assert "Authorization: Bearer" in no_token.json["hint"]
    text = server.ask(LIST, "POST", b"{}", content_type="text/plain")
    assert text.json["detail"] == (
        "the body must be application/json or multipart/form-data, not text/plain"
    )
    nothing = server.send(LIST, {})
    assert "as `manifest`" in nothing.json["hint"]
    code = server.send_form(LIST, {"manifest": "name: x", "code": b"#!/bin/sh"})
    assert "\n" not in code.json["detail"]
    wrong = server.send(LIST, {"manifest": "name: x", "nonsense": 1, "git": {"url": "https://x"}})
    assert wrong.status == 400 and wrong.json["detail"] == (
        "the body is wrong: git.commit: is missing; nonsense: is not known here"
    )
    assert wrong.headers["content-type"] == "application/problem+json"
    manifest = server.send(LIST, {"manifest": {"name": "x", "learners": "many"}})
    assert manifest.status == 422 and len(manifest.json["problems"]) > 1
    assert server.ask(f"{LIST}?limit=0").status == server.ask(f"{LIST}?state=NONE").status == 400
    assert server.ask(f"{LIST}/nobody").status == 404
    assert server.ask(LIST, "PUT", b"").status == 405


def test_a_socket_is_for_its_user_alone_and_goes_with_the_server(desk, tmp_path):
    path = tmp_path / "run/serve.sock"
    with running(desk, run.Place(unix=path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
            client.sendall(f"GET {LIST} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        with pytest.raises(RecordError, match="another server"), run.prepared(
            desk, run.Place(unix=path)
        ):  # fmt: skip
            pass
    assert not path.exists()
    path.touch()
    with pytest.raises(RecordError, match="no socket"), run.prepared(desk, run.Place(unix=path)):
        pass
    below = run.Place(unix=path / "below/serve.sock")
    with pytest.raises(RecordError, match="can't be made") as told, run.prepared(desk, below):
        pass
    assert "--socket FILE" in told.value.hint


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 200), ({"origin": "https://dl.example"}, 200), ({"authorization": ""}, 401),
    ({"origin": "https://evil.example"}, 403),
])  # fmt: skip
def test_behind_a_proxy_the_server_has_its_name_and_asks_for_the_token(
    desk, tmp_path, headers, status
):
    with running(desk, run.Place(trusts_proxy=True)) as port:
        server = RestServer({"XDG_STATE_HOME": str(tmp_path / "state")}, tmp_path, port)
        assert server.ask(LIST, host="dl.example", **headers).status == status


def test_places_that_others_could_reach_are_refused(desk, monkeypatch, tmp_path):
    with pytest.raises(Misused, match="other machines"):
        run.Place(address="0.0.0.0")
    run.Place(address="0.0.0.0", trusts_proxy=True)
    with pytest.raises(Misused, match="together"):
        run.Place(certificate=tmp_path / "c.pem")
    for content in (None, "no certificate"):
        if content:
            (tmp_path / "c.pem").write_text(content)
        files = run.Place(certificate=tmp_path / "c.pem", key=tmp_path / "c.pem")
        with pytest.raises(RecordError, match=r"c\.pem") as told, run.prepared(desk, files):
            pass
        assert "PEM" in told.value.hint
    run.read_token()
    run.token_file().chmod(0o644)
    with pytest.raises(RecordError, match="read by others"):
        run.read_token()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Misused, match="root"):
        run.Place()


def test_a_server_whose_code_was_updated_says_so(server, monkeypatch):
    monkeypatch.setattr(app, "_stamp", lambda: (("changed", 0, 0),))
    monkeypatch.setattr(Desk, "keep_new", lambda *_: 1 / 0)
    told = server.ask(LIST)
    assert told.status == 503 and "updated" in told.json["detail"]


def test_the_token_compares_as_bearer_and_as_password():
    assert guard._is("secret", "Bearer secret")
    assert guard._is("secret", "Basic YW55OnNlY3JldA==")
    assert not guard._is("secret", "Basic c2VjcmV0")
    assert not guard._is("secret", "Digest secret")
