"""Webhooks: what is sent can be verified, and comes neither late nor to somebody's own network."""

import contextlib
import re
import socket
import threading
import time

import pytest
from people import certificate, webhook
from repository import REPOSITORY

from dlctl import contract
from dlctl.contract import Endpoint, NotSent
from dlctl.contract.ground.addresses import is_public, parse_address

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOTICE = contract.notice_of_start("t-1", "digits", "mycluster", 2, 4)


def sent_to(url, hosts, secret="", timeout_s=60):
    """Send a notice; return why it was not sent."""
    try:
        contract.send_webhook(Endpoint("", "started", url, secret), hosts, NOTICE, timeout_s)
    except NotSent as error:
        assert "secret-token" not in str(error) and SECRET not in str(error)
        return str(error)
    return ""


def resolve_to(monkeypatch, *answers):
    """Let `hook.example.org` have one address after another; return who asked for it."""
    hosts = []
    real = socket.getaddrinfo

    def resolve(host, *arguments, **named):
        if host == "hook.example.org":
            host = answers[min(len(hosts), len(answers) - 1)]
            hosts.append(host)
        return real(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return hosts


# The signature -----------------------------------------------------------------------------------


def test_the_receiver_of_the_page_verifies_what_comes():
    page = (REPOSITORY / "docs/webhooks.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    receiver = {}
    exec(program, receiver)
    is_genuine = receiver["is_genuine"]
    with webhook() as hook:
        assert sent_to(hook.url, ["127.0.0.1"], SECRET) == ""
    ((headers, body),) = hook.sent
    assert is_genuine(SECRET, headers, body)
    assert is_genuine(SECRET, headers | {"webhook-signature": "v1,x v1a,y " + headers[
        "webhook-signature"]}, body)  # fmt: skip
    assert not is_genuine("whsec_" + "A" * 32, headers, body)
    assert not is_genuine(SECRET, headers, body.replace(b"t-1", b"t-2"))
    for name, value in (("webhook-id", "t-1-0-failed"), ("webhook-signature", "v1,é"),
                        ("webhook-timestamp", str(int(time.time()) - 400))):  # fmt: skip
        assert not is_genuine(SECRET, headers | {name: value}, body)


def test_without_a_secret_nothing_is_signed_and_one_that_is_too_short_is_refused(monkeypatch):
    with webhook() as hook:
        assert sent_to(hook.url, ["127.0.0.1"]) == ""
        for secret in ("hunter2", "whsec_AAAA", "whsec_é"):
            assert "24 to 64 bytes in base64" in sent_to(hook.url, ["127.0.0.1"], secret)
    ((headers, _),) = hook.sent
    assert headers["webhook-id"] == "t-1-0-started" and "webhook-signature" not in headers
    assert hook.got[0]["id"] == "t-1-0-started" and hook.got[0]["name"] == "digits"
    # One of the test vectors that the specification's libraries share.
    monkeypatch.setattr(time, "time", lambda: 1614265330)
    signed = contract.signed_headers(
        SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}'
    )
    assert signed["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


# Where it goes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
     "0.0.0.0", "192.0.0.8", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
     "255.255.255.255", "::", "::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "ff02::1",
     "::ffff:127.0.0.1", "::ffff:a00:1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1",
     "2001:0:1::", "2001:db8::1", "2002:7f00:1::", "fec0::1", "4000::1"],
)  # fmt: skip
def test_what_is_no_host_on_the_internet(address):
    found = parse_address(address)
    assert found is not None and not is_public(found)


def test_what_is_a_host_on_the_internet():
    for address in ("9.9.9.9", "2620:fe::fe", "64:ff9b::909:909", "192.88.98.1"):
        found = parse_address(address)
        assert found is not None and is_public(found), address


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]",
             "0", "LOCALHOST.", "hook.example.org"],
)  # fmt: skip
def test_no_spelling_of_an_address_leads_into_ones_own_network(host, monkeypatch):
    resolve_to(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it has connected"))
    for scheme in ("http", "https"):
        said = sent_to(f"{scheme}://{host}:9/secret-token", ["other.example.org", "10.0.0.0/8"])
        assert "is not public" in said and "webhook_hosts" in said


def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch):
    both = [(socket.AF_INET, 1, 6, "", (each, 443)) for each in ("9.9.9.9", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it has connected"))
    assert "at 10.0.0.1, is not public" in sent_to("https://hook.example.org/", [])


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch):
    with webhook() as allowed, webhook("127.0.0.2") as inner:
        hosts = resolve_to(monkeypatch, "127.0.0.1", "127.0.0.2")
        url = f"http://hook.example.org:{allowed.port}/"
        assert sent_to(url, ["127.0.0.1/32"]) == "" and hosts == ["127.0.0.1"]
        assert "127.0.0.2, is not public" in sent_to(
            f"http://hook.example.org:{inner.port}/", ["127.0.0.1/32"]
        )
    assert (len(allowed.got), inner.request_count) == (1, 0)
    assert allowed.sent[0][0]["host"] == f"hook.example.org:{allowed.port}"


def test_a_public_host_is_asked_by_tls_only_and_no_proxy_is(monkeypatch):
    connected = []

    def connect(address, timeout_s):
        connected.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    resolve_to(monkeypatch, "9.9.9.9")
    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    assert "without TLS" in sent_to("http://hook.example.org/secret-token", ["10.0.0.0/8"])
    assert not connected
    assert "Connection refused" in sent_to("https://hook.example.org/secret-token", [])
    assert connected == [("9.9.9.9", 443)]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(code):
    with webhook() as inner, webhook() as hook:
        hook.answers = [code]
        hook.headers["Location"] = inner.url
        assert f"answered with {code}" in sent_to(hook.url, ["127.0.0.1"])
    assert (hook.request_count, inner.request_count) == (1, 0)


@pytest.mark.parametrize(
    ("url", "said"),
    [("ftp://hook.example.org/", "no http"), ("file:///etc/passwd", "no http"),
     ("https:///x", "no http"), ("https://[::1/", "no http"), ("https://h:99999/", "no http"),
     ("https://me:secret-token@hook.example.org/", "names a user"),
     ("http://hook.example.org/", "without TLS"), ("http://9.9.9.9/", "without TLS"),
     ("https://10.0.0.1/", "not public"), ("https://[fe80::1]/", "not public")],
)  # fmt: skip
def test_what_is_refused_before_anybody_is_asked(url, said):
    with pytest.raises(NotSent, match=said) as caught:
        contract.check_webhook(url, "", [])
    assert caught.value.hint and "secret-token" not in str(caught.value)


def test_a_certificate_counts_if_it_is_trusted_and_has_the_name(tmp_path, monkeypatch):
    made, key = certificate(tmp_path)
    with webhook() as hook:
        hook.encrypt(made, key)
        assert "certificate: self-signed" in sent_to(hook.url, ["localhost"])
        monkeypatch.setenv("SSL_CERT_FILE", str(made))
        wrong = f"https://127.0.0.1:{hook.port}/"
        assert "certificate: IP address mismatch" in sent_to(wrong, ["127.0.0.1"])
        assert not hook.sent
        assert sent_to(hook.url, ["localhost"], SECRET) == ""
    assert len(hook.got) == 1


# How long it takes -------------------------------------------------------------------------------


@contextlib.contextmanager
def peer(*sends):
    """Yield the URL of a server that sends the last piece for ever, and whether that has ended."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    for piece in sends:
                        connection.sendall(piece)
                    while sends:
                        connection.sendall(sends[-1])
                        time.sleep(0.001)
                    while connection.recv(4096):
                        pass
            ended.set()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/secret-token", ended
        assert ended.wait(60), "the connection stays open"
        thread.join()


@pytest.mark.parametrize("sends", [(), (b"H",), (b"HTTP/1.1 100 Continue\r\n\r\n",),
                                   (b"HTTP/1.1 200 OK\r\n", b"x")])  # fmt: skip
def test_an_answer_that_never_ends_is_given_up_in_time(sends):
    with peer(*sends) as (url, ended):
        said = sent_to(url, ["127.0.0.1"], timeout_s=0.3)
        assert "did not answer within 0.3 s" in said or "LineTooLong" in said
        assert ended.wait(60)


def test_an_endless_answer_is_not_read(monkeypatch):
    with peer(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536) as (url, ended):
        assert sent_to(url, ["127.0.0.1"]) == "" and ended.wait(60)


def test_a_silent_name_server_is_given_up_in_time(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60) and [])
    assert "did not answer within 0.1 s" in sent_to("https://hook.example.org/", [], timeout_s=0.1)
    released.set()


# Endpoints ---------------------------------------------------------------------------------------


def test_of_endpoints_the_last_line_counts_and_a_cut_one_does_not():
    lines = [
        contract.to_json(each).replace("\n", "")
        for each in (Endpoint("a", "failed", "https://1"), Endpoint("a", "started", "https://2"),
                     Endpoint("b", "failed", "https://3"), Endpoint("a", "failed", "https://4"),
                     Endpoint("b", "failed"))
    ]  # fmt: skip
    known = contract.parse_endpoints("\n".join(["", *lines, '{"id": "c", "ev']))
    assert [(each.id, each.event, each.url) for each in known] == [
        ("a", "failed", "https://4"), ("a", "started", "https://2")
    ]  # fmt: skip
    assert contract.ways_of(None, known, "failed") == ["webhook-a"]
