from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import paramiko
import pytest
from login_side import make_site
from ssh_servers import block, fingerprint, free_port, make_key, running_sshd, start_sshd

from dlctl.doctor.chain import Chain
from dlctl.doctor.network import check_way
from dlctl.errors import (
    AuthError,
    ConnectError,
    ConnectionLost,
    HostKeyError,
    TransportError,
    TransportTimeout,
)
from dlctl.sites.files import TransportSettings
from dlctl.transport import ssh as ssh_module
from dlctl.transport.ssh_config import split_hop, target_of


def works(ssh_setup, host, config="", **more):
    with ssh_setup.open(host, config=config, **more) as transport:
        assert transport.run("echo x").text == "x\n"


# Names and configuration ------------------------------------------------------------------------


def test_the_name_has_user_host_and_port(ssh_setup):
    with ssh_setup.open("plain") as transport:
        transport.run("true")
        assert transport.name.endswith(f"@127.0.0.1:{ssh_setup.servers['plain'].port}")


def test_the_config_file_may_come_from_the_environment(ssh_setup, monkeypatch):
    monkeypatch.setenv("DLCTL_SSH_CONFIG", str(ssh_setup.config))
    settings = TransportSettings(kind="ssh", host="plain")
    with ssh_module.SshTransport(settings) as transport:
        assert transport.run("echo x").text == "x\n"


def test_what_a_login_shell_prints_before_each_command_is_a_warning_of_the_doctor(
    ssh_setup, monkeypatch
):
    monkeypatch.setenv("DLCTL_SSH_CONFIG", str(ssh_setup.config))
    shells = []
    for host in ("plain", "odd"):
        chain = Chain()
        with ssh_setup.open(host) as transport:
            check_way(chain, make_site(transport=f"{{kind: ssh, host: {host}}}"), transport)
        shells += [link for link in chain.links if link.name == "shell"]
    assert [link.state for link in shells] == ["ok", "warn"]
    assert "'Welcome'" in shells[1].evidence


def test_include_and_host_key_alias(ssh_setup, tmp_path):
    server = ssh_setup.servers["plain"]
    known = tmp_path / "known"
    known.write_text(f"the-cluster {server.public_host_key}\n")
    (tmp_path / "more").write_text(
        block(ssh_setup, "aliased", server, "  HostKeyAlias the-cluster", known)
    )
    works(ssh_setup, "aliased", f"Include {tmp_path}/more")


def test_without_an_ssh_client_the_config_is_parsed_here(ssh_setup, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    works(ssh_setup, "plain")


def test_an_older_ssh_prints_options_without_a_value(ssh_setup, tmp_path, monkeypatch):
    older = tmp_path / "ssh"
    older.write_text(f"#!/bin/sh\n{shutil.which('ssh')} \"$@\" | sed 's/^canonicaldomains.*/"
                     "canonicaldomains/; $a canonicalizehostname yes'\n")  # fmt: skip
    older.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    works(ssh_setup, "plain")


@pytest.mark.parametrize(
    ("hop", "parts"),
    [
        ("h", ("h", None, None)),
        ("u@h:22", ("h", "u", 22)),
        ("ssh://u@h:2", ("h", "u", 2)),
        ("[::1]:7", ("::1", None, 7)),
        ("a@b@h", ("h", "a@b", None)),
    ],
)
def test_hops_are_split(hop, parts):
    assert split_hop(hop) == parts


def test_settings_win_over_the_config_file(ssh_setup):
    settings = TransportSettings(kind="ssh", host="plain", user="someone", port=7)
    target = target_of(settings, ssh_setup.config)
    assert (target.user, target.port, target.hostname) == ("someone", 7, "127.0.0.1")


# Host keys --------------------------------------------------------------------------------------


def test_a_host_key_that_is_unknown_changed_or_revoked_is_refused(ssh_setup, tmp_path):
    server, other = ssh_setup.servers["plain"], ssh_setup.servers["odd"]
    known, line = tmp_path / "known", f"[127.0.0.1]:{server.port} "
    for text, said, hint in (
        (None, fingerprint(server), f"-p {server.port} stranger"),
        (f"{line}{other.public_host_key}\n", "CHANGED",
         f"ssh-keygen -R '[127.0.0.1]:{server.port}' -f '{known}'"),
        (f"{line}{server.public_host_key}\n@revoked * {server.public_host_key}\n", "revoked", ""),
    ):  # fmt: skip
        if text:
            known.write_text(text)
        extra = "  StrictHostKeyChecking no" if text else ""
        config = block(ssh_setup, "stranger", server, extra, known)
        with pytest.raises(HostKeyError, match=re.escape(said)) as caught:
            ssh_setup.open("stranger", config=config, port=server.port).run("true")
        assert fingerprint(server) in str(caught.value) or said == "revoked"
        assert hint in caught.value.hint
        assert known.exists() == bool(text)


@pytest.mark.parametrize("way", [
    "no common cipher", "a certificate authority", "an alias and a certificate authority",
    "a command for known hosts",
])  # fmt: skip
def test_what_only_the_systems_ssh_can_do_is_said_and_works_there(
    ssh_setup, lasting, tmp_path, way
):
    """The hints were the network, and a log-in that changes nothing."""
    authority, known = make_key(tmp_path / "authority"), tmp_path / "known"
    options, more = "Ciphers chacha20-poly1305@openssh.com", ""
    signs_for = {"a certificate authority": "127.0.0.1", "no common cipher": "",
                 "a command for known hosts": ""}.get(way, "the-cluster")  # fmt: skip
    if signs_for:
        signs = ["ssh-keygen", "-q", "-s", str(authority), "-h", "-I", "host", "-n", signs_for]
        make_key(tmp_path / "host_key")
        subprocess.run([*signs, f"{tmp_path}/host_key.pub"], check=True)
        options = (
            f"HostKey {tmp_path}/host_key\nHostCertificate {tmp_path}/host_key-cert.pub\n"
            "HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com,ssh-ed25519"
        )
    if way == "a command for known hosts":
        options = ""
    with running_sshd(tmp_path / "srv", [ssh_setup.key], options) as server:
        server.known_by(known)
        if signs_for:
            public = " ".join(Path(f"{authority}.pub").read_text().split()[:2])
            is_alias = way.startswith("an alias")
            named = "the-*" if is_alias else f"[127.0.0.?]:{server.port}"
            known.write_text(f"@cert-authority {named} {public}\n")
            more = "  HostKeyAlias the-cluster" if is_alias else ""
        if way == "a command for known hosts":
            elsewhere = known.rename(tmp_path / "elsewhere")
            more = f"  KnownHostsCommand /bin/cat {elsewhere}"
        config = block(ssh_setup, "modern", server, more, known=known)
        with pytest.raises(TransportError) as caught:
            ssh_setup.open("modern", config=config).run("true")
        assert "`kind: openssh`" in caught.value.hint, caught.value
        assert lasting("modern", config).run("echo x").text == "x\n"


def test_hashed_known_hosts(ssh_setup, tmp_path):
    server = ssh_setup.servers["plain"]
    known = server.known_by(tmp_path / "known")
    subprocess.run(["ssh-keygen", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    works(ssh_setup, "h", block(ssh_setup, "h", server, known=known))


def test_a_damaged_line_of_known_hosts_hinders_no_other_host(ssh_setup, tmp_path):
    """It was an internal error."""
    server = ssh_setup.servers["plain"]
    known = server.known_by(tmp_path / "known")
    damaged = ["other ecdsa-sha2-nistp256 AAAA42VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABB",
               "|1|xx ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQA=", "|1|!!|!! ssh-rsa AAAA", "word",
               f"[127.0.0.1]:{server.port} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAAgEB"]  # fmt: skip
    known.write_text("\n".join([*damaged, known.read_text()]))
    works(ssh_setup, "h", block(ssh_setup, "h", server, known=known))


def test_the_kind_of_host_key_that_is_known_is_asked_for(ssh_setup, tmp_path):
    rsa = make_key(tmp_path / "rsa_host", kind="rsa")
    with running_sshd(tmp_path / "srv", [ssh_setup.key], f"HostKey {rsa}") as server:
        known = tmp_path / "known"
        public = " ".join(Path(f"{rsa}.pub").read_text().split()[:2])
        known.write_text(f"[127.0.0.1]:{server.port} {public}\n")
        works(ssh_setup, "two-keys", block(ssh_setup, "two-keys", server, known=known))


# The way there ----------------------------------------------------------------------------------


def test_jump_through_two_hops_each_verified(ssh_setup):
    server = ssh_setup.servers["plain"]
    config = block(ssh_setup, "inner", server, "  ProxyJump odd,plain")
    with ssh_setup.open("inner", config=config) as transport:
        assert transport.run("cat", stdin=b"x" * 300_000).stdout == b"x" * 300_000


def test_an_unknown_hop_is_refused(ssh_setup, tmp_path):
    hop = block(ssh_setup, "hop", ssh_setup.servers["odd"], known=tmp_path / "none")
    inner = block(ssh_setup, "inner", ssh_setup.servers["plain"], "  ProxyJump hop")
    with pytest.raises(HostKeyError, match=str(ssh_setup.servers["odd"].port)):
        ssh_setup.open("inner", config=hop + inner).run("true")


def test_proxy_command(ssh_setup):
    python = f"{sys.executable} -W ignore -c"
    code = (
        "import socket,threading,os,sys;s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
        "threading.Thread(target=lambda:[s.sendall(d) for d in iter(lambda:os.read(0,65536),b'')],"
        "daemon=True).start();[os.write(1,d) for d in iter(lambda:s.recv(65536),b'')]"
    )
    command = f'  ProxyCommand {python} "{code}" %h %p'
    works(ssh_setup, "proxied", block(ssh_setup, "proxied", ssh_setup.servers["plain"], command))


def at(port, more=""):
    return f"Host there\n  HostName 127.0.0.1\n  Port {port}\n{more}"


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ("NonsenseOption 1", ConnectError, "nonsenseoption"),
        (at(22, "  ProxyJump there\n"), ConnectError, "loop"),
        (at("PORT", "  ProxyJump plain\n"), ConnectError, "while .* opened the way to it"),
        (at("PORT"), ConnectError, "refused"),
        ("Host there\n  HostName does-not-exist.invalid\n", TransportError, "does-not-exist"),
        # Python's own encoding of names refused it: an internal error of dlctl.
        ("Host there\n  HostName a..b\n", ConnectError, "while connecting"),
    ],
)  # fmt: skip
def test_a_way_that_leads_nowhere_is_told_with_its_place(ssh_setup, config, error, said):
    config = config.replace("PORT", str(free_port()))
    with pytest.raises(error, match=said):
        ssh_setup.open("there", config=config).run("true")


def test_a_server_that_never_speaks(ssh_setup):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = ssh_setup.open("there", config=at(listener.getsockname()[1]), timeout_s=0.5)
        with pytest.raises(TransportTimeout, match="no answer in time"):
            transport.run("true")


@contextlib.contextmanager
def own_server(ssh_setup, folder):
    """A server that a test may stop, and a transport to it."""
    server = start_sshd(folder / "srv", [ssh_setup.key])
    config = block(ssh_setup, "own", server, known=server.known_by(folder / "known"))
    transport = ssh_setup.open("own", config=config)
    try:
        yield server, transport
    finally:
        server.stop()
        transport.close()


def test_a_server_that_hangs_in_the_middle(ssh_setup, tmp_path):
    with own_server(ssh_setup, tmp_path) as (server, transport):
        transport.run("true")
        transport._settings = transport._settings.model_copy(update={"connect_timeout_s": 0.5})
        for pid in server.connections():
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TransportTimeout):
            transport.run("echo x", timeout_s=1.0)


def test_a_connection_that_drops_is_lost_and_then_made_again(ssh_setup, tmp_path):
    with own_server(ssh_setup, tmp_path) as (server, transport):
        process = transport.start("echo on; cat")
        assert process.stdout.read(3) == b"on\n"
        for pid in server.connections():
            with contextlib.suppress(ProcessLookupError):  # one's end may be another's
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionLost):
            process.wait(60)
        assert transport.run("echo again").text == "again\n"


# Logging in -------------------------------------------------------------------------------------


def test_a_key_that_is_not_accepted(ssh_setup, tmp_path):
    key = make_key(tmp_path / "other")
    config = block(ssh_setup, "refused", ssh_setup.servers["plain"], key=key)
    with pytest.raises(AuthError) as caught:
        ssh_setup.open("refused", config=config).run("true")
    assert str(key) in str(caught.value)
    assert "publickey" in str(caught.value)


@pytest.fixture(scope="session")
def encrypted(ssh_setup, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encrypted")
    key = make_key(folder / "locked", passphrase="open sesame")
    with running_sshd(folder / "srv", [key]) as server:
        known = server.known_by(folder / "known")
        yield block(ssh_setup, "locked", server, known=known, key=key)


def test_an_encrypted_key_asks_for_its_passphrase(ssh_setup, encrypted):
    asked = []
    answers = iter(["wrong", "open sesame"])

    def prompt(text, hidden):
        asked.append((text, hidden))
        return next(answers)

    works(ssh_setup, "locked", encrypted, prompt=prompt)
    assert [hidden for _, hidden in asked] == [True, True]
    assert "locked" in asked[0][0]


def test_a_wrong_passphrase_is_asked_for_three_times(ssh_setup, encrypted):
    asked = []
    with pytest.raises(AuthError, match="wrong passphrase"):
        ssh_setup.open("locked", lambda text, _: asked.append(text) or "no", encrypted).run("true")
    assert len(asked) == 3


def test_keys_that_paramiko_does_not_know_are_passed_over(ssh_setup, tmp_path, monkeypatch):
    """The file of a security key was an internal error."""
    security = make_security_key(tmp_path / "sk")
    dsa = make_key(tmp_path / "dsa", kind="dsa")
    monkeypatch.setenv("KEYS", str(ssh_setup.key.parent))
    more = f"  IdentityFile {dsa}\n  IdentityFile ${{KEYS}}/{ssh_setup.key.name}"
    works(ssh_setup, "k", block(ssh_setup, "k", ssh_setup.servers["plain"], more, key=security))


def make_security_key(path):
    """Write what `ssh-keygen -t ed25519-sk` does: a handle, and no secret."""

    def text(*parts):
        return b"".join(struct.pack(">I", len(part)) + part for part in parts)

    public = text(b"sk-ssh-ed25519@openssh.com", bytes(32), b"ssh:")
    private = bytes(8) + public + b"\1" + text(bytes(64), b"", b"")
    private += bytes(range(1, 9))[: -len(private) % 8]
    key = b"openssh-key-v1\0" + text(b"none", b"none", b"") + bytes([0, 0, 0, 1])
    body = base64.encodebytes(key + text(public, private)).decode()
    path.write_text(
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}-----END OPENSSH PRIVATE KEY-----\n"
    )
    path.chmod(0o600)
    return path


def test_a_key_of_the_agent(ssh_setup, tmp_path, monkeypatch):
    agent_socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.PIPE)
    try:
        agent.stdout.readline()  # once it listens; its socket is there a moment earlier
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent_socket))
        subprocess.run(["ssh-add", "-q", str(ssh_setup.key)], check=True, capture_output=True)
        config = block(ssh_setup, "agent", ssh_setup.servers["plain"], key=f"{ssh_setup.key}.pub")
        works(ssh_setup, "agent", config)
    finally:
        agent.terminate()
        agent.communicate()


def test_a_certificate(ssh_setup, tmp_path):
    authority, key = make_key(tmp_path / "ca"), make_key(tmp_path / "user")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", user, f"{key}.pub"], check=True
    )
    trusts = f"TrustedUserCAKeys {authority}.pub"
    with running_sshd(tmp_path / "srv", [], trusts) as server:
        known = server.known_by(tmp_path / "known")
        works(ssh_setup, "cert", block(ssh_setup, "cert", server, known=known, key=key))


class TwoFactorServer(paramiko.ServerInterface):
    """Wants a password and then a code; sshd without PAM can't."""

    def get_allowed_auths(self, username):
        return "keyboard-interactive"

    def check_auth_interactive(self, username, submethods):
        query = paramiko.server.InteractiveQuery("Two factors", "")
        query.add_prompt("Password: ", False)
        query.add_prompt("Code: ", True)
        return query

    def check_auth_interactive_response(self, responses):
        right = list(responses) == ["pass wörd", "123456"]
        return paramiko.common.AUTH_SUCCESSFUL if right else paramiko.common.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        def work():
            argv = ["/bin/sh", "-c", command.decode()]
            data = channel.makefile("rb").read()
            done = subprocess.run(argv, input=data, capture_output=True, check=False)
            with contextlib.suppress(EOFError, OSError):  # the other side has gone
                channel.sendall(done.stdout)
                channel.sendall_stderr(done.stderr)
                channel.send_exit_status(done.returncode)
                channel.close()

        threading.Thread(target=work, daemon=True).start()
        return True


@pytest.fixture
def two_factor(ssh_setup, tmp_path):
    key = paramiko.Ed25519Key.from_private_key_file(str(make_key(tmp_path / "host")))
    listener = socket.create_server(("127.0.0.1", 0))
    port, transports = listener.getsockname()[1], []

    def serve():
        try:
            client, _ = listener.accept()
        except OSError:
            return
        transport = paramiko.Transport(client)
        transports.append(transport)
        transport.add_server_key(key)
        transport.start_server(server=TwoFactorServer())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
    yield f"Host two\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile {known}\n"
    listener.close()
    thread.join(60)
    for transport in transports:
        transport.close()


def test_a_second_factor_is_asked_for(ssh_setup, two_factor):
    asked = []

    def prompt(text, hidden):
        asked.append((text, hidden))
        return "pass wörd" if hidden else "123456"

    works(ssh_setup, "two", two_factor, prompt=prompt)
    assert asked == [("Two factors\nPassword: ", True), ("Code: ", False)]


def test_a_method_that_the_user_forbids_is_not_tried(ssh_setup, two_factor):
    config = two_factor + "  KbdInteractiveAuthentication no\n"
    with pytest.raises(AuthError, match="tried: nothing"):
        ssh_setup.open("two", prompt=lambda *_: pytest.fail("asked"), config=config).run("true")


def no_answer(text, hidden):
    raise EOFError(text)


def cancelled(text, hidden):
    raise EOFError


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (None, "no terminal"), (lambda *_: "no", "accepted"),
        (cancelled, "was cancelled"), (no_answer, "nobody answered 'Password:'"),
    ],
)  # fmt: skip
def test_a_second_factor_that_is_not_given_is_told(ssh_setup, two_factor, prompt, said):
    with pytest.raises(AuthError, match=said):
        ssh_setup.open("two", prompt=prompt, config=two_factor).run("true")


@pytest.mark.parametrize(
    ("prompt", "said"), [(None, "no terminal"), (no_answer, "nobody answered 'Passphrase of .*'")]
)
def test_an_encrypted_key_without_its_passphrase_is_explained(ssh_setup, encrypted, prompt, said):
    """The question that nobody answered was told as an error of the connection."""
    with pytest.raises(AuthError, match=said):
        ssh_setup.open("locked", prompt=prompt, config=encrypted).run("true")


# The border -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (paramiko.SSHException("no"), ConnectionLost),
        (paramiko.AuthenticationException("no"), AuthError),
        (paramiko.ssh_exception.PasswordRequiredException("no"), AuthError),
        (paramiko.ssh_exception.NoValidConnectionsError({("h", 1): OSError("no")}), ConnectionLost),
        (paramiko.ssh_exception.IncompatiblePeer("no"), ConnectionLost),
        (EOFError(), ConnectionLost),
        (TimeoutError(), TransportTimeout),
        (socket.gaierror("no"), ConnectionLost),
        (UnicodeError("no"), ConnectionLost),
    ],
)
def test_foreign_errors_become_ours(error, ours):
    with (
        pytest.raises(ours, match="h: ") as told,
        ssh_module._translated("h", "opening a channel", 9),
    ):
        raise error
    if isinstance(error, EOFError):
        assert "while opening a channel: the connection was lost" in told.value.message


def test_paramiko_prints_nothing(ssh_setup, tmp_path):
    code = (
        "import sys; from pathlib import Path; from dlctl.sites.files import TransportSettings;"
        "from dlctl.transport import open_transport;"
        "t = open_transport(TransportSettings(kind='ssh', host=sys.argv[1], connect_timeout_s=9))\n"
        "try: t.run('true')\n"
        "except Exception as e: print(type(e).__name__)\n"
        "t.close()"
    )
    config = tmp_path / "config"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config.write_text(at(listener.getsockname()[1]))
        argv = [sys.executable, "-c", code, "there"]
        env = {**os.environ, "DLCTL_SSH_CONFIG": str(config)}
        with subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:  # fmt: skip
            client, _ = listener.accept()
            client.sendall(b"SSH-2.0-x\r\n" + b"garbage" * 100)
            client.close()
            assert process.communicate(timeout=60) == ("ConnectError\n", "")
