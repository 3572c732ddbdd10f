"""What hangs on a broken link is skipped; the network's links, against servers of this machine."""

import socket
import sqlite3
import threading

import pytest
from login_side import make_record, make_site

from dlctl.doctor.at_site import check_at_site, check_root
from dlctl.doctor.chain import Chain
from dlctl.doctor.local_checks import _record
from dlctl.doctor.network import add_clock, check_shell, check_way
from dlctl.errors import AuthError, HostKeyError, RemoteCommandError, TransportError
from dlctl.lifecycle.session import open_session
from dlctl.record import RecordStore
from dlctl.transport.local import LocalTransport


def states(chain):
    return {link.name: link.state for link in chain.links}


def test_what_hangs_on_a_broken_link_is_skipped_and_says_on_which():
    def fails():
        raise AuthError("no key", hint="add one")

    told = []
    chain = Chain("x", told.append)
    chain.add("a", "ok", "well\nthen")
    chain.ask("b", ["a"], lambda: chain.add("b", "broken", "no"))
    chain.ask("c", ["a", "b"], lambda: chain.add("c", "ok", "never"))
    chain.ask("d", ["c"], lambda: chain.add("d", "ok", "never"))
    chain.ask("e", ["a"], lambda: chain.add("e", "warn", "hm"))
    chain.ask("f", [], fails)
    assert states(chain) == {
        "a": "ok", "b": "broken", "c": "skipped", "d": "skipped", "e": "warn", "f": "broken",
    }  # fmt: skip
    assert (chain.links[-1].evidence, chain.links[-1].fix) == ("no key", "add one")
    assert chain.links[0].evidence == "well then"
    assert [link.evidence for link in chain.links[2:4]] == [
        "not tried: b is broken", "not tried: c is skipped",
    ]  # fmt: skip
    assert told == chain.links and {link.site for link in told} == {"x"}


class Fails(LocalTransport):
    """A way to a site that ends with an error."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def start(self, script, **_):
        raise self.error


@pytest.fixture
def server(monkeypatch):
    """A server that says one thing to each connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    said = [b"SSH-2.0-test\r\n"]

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(said[0])

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("DLCTL_SSH_CONFIG", "/dev/null")
    yield listening.getsockname()[1], said
    listening.close()


def way(port, transport, host="127.0.0.1", kind="ssh"):
    chain = Chain("x")
    settings = f"{{kind: {kind}, host: {host}, port: {port}, connect_timeout_s: 2}}"
    site = make_site(transport=settings)
    check_way(chain, site, transport)
    return {link.name: link for link in chain.links}


@pytest.mark.parametrize(
    ("error", "link"),
    [(HostKeyError("changed"), "host key"), (AuthError("refused"), "log-in"),
     (RemoteCommandError("no shell"), "shell"), (TransportError("lost"), "log-in")],
)  # fmt: skip
def test_an_error_of_the_log_in_breaks_the_link_that_it_is_about(server, error, link):
    found = way(server[0], Fails(error))
    assert [name for name, each in found.items() if each.state == "broken"] == [link]
    names = list(found)
    assert all(found[n].state == "skipped" for n in names[names.index(link) + 1 :])
    assert all(found[n].state == "ok" for n in names[: names.index(link)])


def test_what_is_no_ssh_server_is_told(server):
    port, said = server
    said[0] = b"HTTP/1.1 400 Bad Request\r\n"
    found = way(port, LocalTransport())
    assert found["tcp"].state == "broken" and "HTTP/1.1" in found["tcp"].evidence
    said[0] = b""
    found = way(port, LocalTransport())
    assert "ends connections at once" in found["tcp"].evidence and "fail2ban" in found["tcp"].fix


def test_a_server_that_says_nothing_a_closed_port_and_an_unknown_name_are_told_apart(
    server, monkeypatch
):
    monkeypatch.setattr("dlctl.doctor.network.LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = way(silent.getsockname()[1], LocalTransport())
    assert found["tcp"].state == "broken" and "says nothing" in found["tcp"].evidence
    assert found["host key"].evidence == "not tried: tcp is broken"
    assert way(1, LocalTransport())["tcp"].state == "broken"
    found = way(server[0], LocalTransport(), host="no-such-host.invalid")
    assert (found["name"].state, found["tcp"].state) == ("broken", "skipped")


@pytest.mark.parametrize(("check", "about", "state", "words"), [
    (add_clock, ("clock", "the login node", -5, 5), "ok", "agrees"),
    (add_clock, ("clock", "the login node", 3590, 3601), "warn", "60 min behind"),
    (add_clock, ("clock", "the login node", -3605, -3595), "warn", "60 min ahead of"),
    (check_shell, ({"shell": ["/bin/csh"], "lacks": []}, b""), "ok", "/bin/csh starts /bin/sh"),
    (check_shell, ({"shell": ["/bin/csh"], "lacks": ["awk"]}, b""), "broken", "has no awk"),
    (check_shell, ({"shell": ["/bin/csh"], "lacks": []}, b"Welcome\nto us"), "warn",
     "prints 13 bytes before each command ('Welcome')"),
    *((check_root, (make_site(), {"root": [kib]}), state, words) for kib, state, words in (
        ("0", "warn", "writable, 0 B free"), ("1073741824", "ok", "free"), ("-", "ok", "writable"),
    )),
])  # fmt: skip
def test_what_is_seen_of_a_clock_a_shell_and_a_root_is_told(check, about, state, words):
    check(chain := Chain(), *about)
    assert chain.links[0].state == state and words in chain.links[0].evidence


def test_a_shell_that_runs_nothing_leaves_the_site_untried():
    chain = Chain()
    chain.add("log-in", "ok", "me")
    chain.add("shell", "broken", "nologin")
    check_at_site(chain, open_session(make_site()))
    assert chain.links[-1].evidence == "not tried: shell is broken"
    assert {states(chain)[name] for name in ("root", "python", "slurm", "accounting")} == {
        "skipped"
    }


def test_a_machine_without_ssh_is_told_what_the_kind_of_the_site_needs(server, monkeypatch):
    assert {each.state for each in way(server[0], LocalTransport()).values()} == {"ok"}
    monkeypatch.setenv("PATH", "/nonexistent")
    found = way(server[0], LocalTransport(), kind="openssh")
    assert [name for name, each in found.items() if each.state == "broken"] == ["log-in"]
    assert "kind: ssh" in found["log-in"].fix
    assert list(found) == ["name", "tcp", "host key", "log-in", "shell", "clock"]


def test_what_the_local_record_is_like_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    chain, store = Chain(), RecordStore()
    _record(chain)
    store.add(make_record())
    _record(chain)
    with sqlite3.connect(store.path) as newer:
        newer.execute("UPDATE trainings SET fields = json_set(fields, '$.state', 'ASLEEP')")
    _record(chain)
    store.path.write_bytes(b"no database at all, but longer than the head of one: " * 10)
    _record(chain)
    empty, one, newer, damaged = chain.links
    assert [link.state for link in chain.links] == ["ok", "ok", "warn", "broken"]
    assert "`dlctl adopt SITE` fills it" in empty.evidence and "1 training in" in one.evidence
    assert "does not understand" in newer.evidence and newer.fix == "update dlctl"
    assert "is damaged" in damaged.evidence and "dlctl adopt SITE" in damaged.fix
