"""One connection for a day: real masters of the system's ssh, on real servers."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pty
import pwd
import re
import secrets
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hints import commands_in, programs_in
from ssh_servers import SSHD, block, fingerprint, free_port, make_key, running_sshd, served

from dlctl.errors import (
    AuthError,
    ConnectError,
    ConnectionLost,
    HostKeyError,
    TransportError,
    TransportTimeout,
)
from dlctl.files.archive import Entry
from dlctl.files.upload import Tree, upload
from dlctl.transport.algorithms import algorithm_hint
from dlctl.transport.openssh import control_path

PAM_OATH = next(Path("/usr/lib").glob("*/security/pam_oath.so"), None)
SECRET = b"12345678901234567890"


def one_command(transport):
    """Return the arguments of a process that runs one command over the connection of another."""
    return [sys.executable, "-c", ONE_COMMAND, "plain", str(transport._where[1])]


def test_later_commands_use_the_connection_of_the_first(ssh_setup, lasting):
    server = ssh_setup.servers["plain"]
    first = lasting("plain")
    before = served(server)
    with first:
        assert first.run("echo one").text == "one\n"
    assert first.is_open()
    for _ in range(2):
        done = subprocess.run(one_command(first), capture_output=True, check=True)
        assert done.stdout == b"two\n"
    assert served(server) == before + 1
    assert first.disconnect() and not first.is_open() and not first.disconnect()


ONE_COMMAND = """
import sys
from pathlib import Path
from dlctl.sites.files import TransportSettings
from dlctl.transport.openssh import OpensshTransport
settings = TransportSettings(kind="openssh", host=sys.argv[1])
print(OpensshTransport(settings, "", Path(sys.argv[2])).run("echo two").text, end="")
"""


def test_commands_that_begin_at_once_open_one_connection(ssh_setup, lasting):
    server = ssh_setup.servers["plain"]
    transport = lasting("plain")
    before = served(server)
    running = [subprocess.Popen(one_command(transport), stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[0] for process in running] == [b"two\n"] * 4
    assert served(server) == before + 1


def test_a_connection_that_breaks_is_said_and_the_next_command_makes_another(ssh_setup, lasting):
    server = ssh_setup.servers["plain"]
    transport = lasting("plain")
    process = transport.start("echo begun; exec sleep 60")
    assert process.stdout.read(6) == b"begun\n"
    for pid in server.connections():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionLost, match="the connection was lost while a command ran"):
        process.wait(60)
    assert transport.run("echo again").text == "again\n"


def test_a_connection_that_died_in_silence_is_replaced(ssh_setup, lasting, monkeypatch):
    """After a sleep of the laptop each command waited in vain, for two minutes."""
    server, transport = ssh_setup.servers["plain"], lasting("plain")
    assert transport.run("echo x").text == "x\n"
    before = served(server)
    with monkeypatch.context() as long_ago:
        long_ago.setattr("dlctl.transport.openssh._IDLE_S", 0.0)
        assert transport.run("echo x").text == "x\n"
        assert served(server) == before
        silent = server.connections()
        for pid in silent:
            os.kill(pid, signal.SIGSTOP)
        patient = transport._settings
        long_ago.setattr(transport, "_settings", patient.model_copy(
            update={"connect_timeout_s": 3.0}))  # fmt: skip
        assert transport.run("echo x").text == "x\n"
        assert served(server) == before + 1
    for pid in silent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_host_key_that_is_unknown_changed_or_revoked_is_refused(ssh_setup, lasting, tmp_path):
    server, other = ssh_setup.servers["plain"], ssh_setup.servers["odd"]
    known, line = tmp_path / "known", f"[127.0.0.1]:{server.port} "
    for text, said in {
        "": "unknown: it shows", f"{line}{other.public_host_key}\n": "CHANGED: it shows",
        f"{line}{server.public_host_key}\n@revoked * {server.public_host_key}\n":
            "marked as revoked",
    }.items():  # fmt: skip
        known.write_text(text)
        config = block(ssh_setup, "other", server, "  StrictHostKeyChecking no", known)
        with pytest.raises(HostKeyError, match=said) as caught:
            lasting("other", config).run("true")
        assert known.read_text() == text
        if "revoked" not in said:
            assert fingerprint(server) in caught.value.message
            assert "dlctl sites connect it" in caught.value.hint


def test_the_steps_for_a_changed_host_key_let_the_host_in(ssh_setup, lasting, tmp_path):
    """`ssh-keygen -R` is run as it is printed; then a log-in by hand accepts the new key."""
    server, other = ssh_setup.servers["plain"], ssh_setup.servers["odd"]
    known = tmp_path / "known hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {other.public_host_key}\n")
    config = block(ssh_setup, "moved", server, known=Path(f'"{known}"'))
    transport = lasting("moved", config)
    with pytest.raises(HostKeyError, match="CHANGED") as caught:
        transport.run("true")
    forget, _, by_hand = caught.value.hint.partition(" ; then ")
    ((_, forget),) = programs_in(forget)
    subprocess.run(forget, shell=True, check=True, capture_output=True)
    assert known.read_text() == "" and by_hand == "dlctl sites connect it"
    answers_yes = ["-o", "StrictHostKeyChecking=accept-new"]  # in the place of a person
    subprocess.run(["ssh", *transport._where, *answers_yes, "moved", "true"], check=True,
                   capture_output=True)  # fmt: skip
    assert transport.run("echo x").text == "x\n"


def test_too_many_keys_are_no_fault_of_the_network(ssh_setup, lasting, tmp_path):
    """Whoever watched tried them again and again, until the server banned the user."""
    wrong = "".join(f"  IdentityFile {make_key(tmp_path / name)}\n" for name in "abc")
    with running_sshd(tmp_path / "srv", [ssh_setup.key], "MaxAuthTries 2") as server:
        known = server.known_by(tmp_path / "known")
        transport = lasting("own", block(ssh_setup, "own", server, wrong, known, tmp_path / "a"))
        transport._may_ask = True
        with pytest.raises(AuthError, match="Too many authentication failures") as caught:
            transport.run("true")
        assert "IdentitiesOnly" in caught.value.hint and not caught.value.transient
        assert (server.folder / "log").read_text().count("Too many") == 1


def test_a_jump_host_is_on_the_way_once(ssh_setup, lasting):
    hop, target = ssh_setup.servers["odd"], ssh_setup.servers["plain"]
    before = served(hop), served(target)
    transport = lasting("far", block(ssh_setup, "far", target, "  ProxyJump odd"))
    # The hop's own ssh reads the configuration that this one was given.
    assert [transport.run("echo x").text for _ in range(3)] == ["x\n"] * 3
    assert (served(hop), served(target)) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("option", ["IdentityAgent", "CertificateFile"])
def test_an_agent_and_a_certificate_of_the_configuration_count(
    ssh_setup, lasting, tmp_path, option
):
    """paramiko knows neither, as docs/sites.md says."""
    key, authority = make_key(tmp_path / "user"), make_key(tmp_path / "ca")
    given, place = key, tmp_path / "given"
    with contextlib.ExitStack() as ends:
        if option == "IdentityAgent":
            agent = ends.enter_context(subprocess.Popen(["ssh-agent", "-D", "-a", str(place)],
                                                        stdout=subprocess.PIPE))  # fmt: skip
            ends.callback(agent.terminate)
            agent.stdout.readline()
            env, given = {**os.environ, "SSH_AUTH_SOCK": str(place)}, f"{key}.pub"
            subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True, capture_output=True)
            key.rename(tmp_path / "away")
        else:
            user = pwd.getpwuid(os.getuid()).pw_name
            subprocess.run(["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", user,
                            f"{key}.pub"], check=True)  # fmt: skip
            (tmp_path / "user-cert.pub").rename(place)
        trusts = f"TrustedUserCAKeys {authority}.pub"
        authorized = [key] if option == "IdentityAgent" else []
        server = ends.enter_context(running_sshd(tmp_path / "srv", authorized, trusts))
        known = server.known_by(tmp_path / "known")
        config = block(ssh_setup, "own", server, f"  {option} {place}", known, given)
        assert lasting("own", config).run("echo x").text == "x\n"
        with pytest.raises(AuthError, match="no credential was accepted"):
            ssh_setup.open("own", config=config).run("true")


def test_why_there_is_no_connection_is_told(ssh_setup, lasting, tmp_path):
    """A jump host's reason was lost, and of ciphers that differ ssh was said to have told."""
    server, hop = ssh_setup.servers["plain"], ssh_setup.servers["odd"]
    for error, more in ((AuthError, {"key": make_key(tmp_path / "other")}),
                        (HostKeyError, {"known": tmp_path / "none"})):  # fmt: skip
        config = block(ssh_setup, "hop", hop, **more)
        config += block(ssh_setup, "behind", server, "  ProxyJump hop")
        with pytest.raises(error) as caught:
            lasting("behind", config).run("true")
        assert "dlctl sites connect it" in caught.value.hint
    jump = block(ssh_setup, "j", server, f"  ProxyJump 127.0.0.1:{free_port()}")
    with pytest.raises(ConnectError, match="Connection refused"):
        lasting("j", jump).run("true")


OLD = {
    "KexAlgorithms diffie-hellman-group1-sha1": "key exchange method",
    "Ciphers aes128-cbc,3des-cbc": "cipher",
    "HostKeyAlgorithms ssh-rsa": "host key type",
    "MACs hmac-sha1-96\nCiphers aes128-ctr": "MAC",
}


@pytest.mark.parametrize(
    ("options", "way"),
    [*((each, "direct") for each in OLD), *((next(iter(OLD)), way) for way in ("jump", "behind"))],
)
def test_the_lines_for_a_server_of_old_algorithms_let_it_in(
    ssh_setup, lasting, tmp_path, options, way
):
    """Printed was `ssh said nothing`, and as the hint the same command again."""
    new = ssh_setup.servers["plain"]
    rsa = make_key(tmp_path / "host_rsa", kind="rsa")
    with running_sshd(tmp_path / "old", [ssh_setup.key], f"HostKey {rsa}\n{options}") as server:
        known = server.known_by(tmp_path / "known")
        words = " ".join(Path(f"{rsa}.pub").read_text().split()[:2])
        known.write_text(f"{known.read_text()}[127.0.0.1]:{server.port} {words}\n")
        config = block(ssh_setup, "old", server, known=known)
        config += "  ProxyJump plain\n" if way == "behind" else ""
        config += block(ssh_setup, "new", new, "  ProxyJump old")
        host = "new" if way == "jump" else "old"
        if (way, OLD[options]) == ("direct", "key exchange method"):
            with pytest.raises(ConnectError, match="no acceptable kex") as caught:
                ssh_setup.open("old", config=config).run("true")
            assert "`kind: openssh`" in caught.value.hint
        transport = lasting(host, config)
        errors = []
        for ask in (False, True):
            with pytest.raises(ConnectError, match=f"no matching {OLD[options]} found") as caught:
                transport.open(ask=ask)
            errors.append(caught.value)
        assert errors[0].hint == errors[1].hint
        lines = re.findall("`(.*?)`", errors[0].hint)
        assert lines[0] == "Host old" and str(transport._where[1]) in errors[0].hint
        assert lasting(host, "\n".join(lines) + "\n" + config).run("echo x").text == "x\n"


def test_a_server_whose_algorithms_ssh_does_not_have_is_for_its_administrators():
    said = "no matching cipher found. Their offer: arcfour,blowfish-cbc"
    hint = algorithm_hint(said, "old", "~/.ssh/config")
    assert "newer OpenSSH" in hint
    ((_, command),) = programs_in(hint)
    assert command == "ssh -Q cipher"
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert algorithm_hint("Connection refused", "old", "~/.ssh/config") == ""


def test_what_the_configuration_says_for_people_is_left_out(ssh_setup, lasting):
    server = ssh_setup.servers["plain"]
    extra = (
        "  RemoteCommand echo hello\n"
        "  RequestTTY force\n  LocalForward 127.0.0.1:1 127.0.0.1:1\n  ExitOnForwardFailure yes\n"
        "  ControlMaster auto\n  ControlPath /nonexistent/%C\n"
    )
    assert lasting("odd", block(ssh_setup, "odd", server, extra)).run("echo x").text == "x\n"


def test_a_server_that_allows_one_session_at_a_time(ssh_setup, lasting, tmp_path, monkeypatch):
    """An upload, and a script that is read while it runs, failed at once beside another command."""
    with running_sshd(tmp_path / "one", [ssh_setup.key], "MaxSessions 1") as server:
        known = server.known_by(tmp_path / "known")
        transport = lasting("one", block(ssh_setup, "one", server, known=known))
        refused, broken = threading.Event(), transport.broken
        monkeypatch.setattr(transport, "broken", lambda said: (refused.set(), broken(said))[1])
        assert [transport.run("echo x").text for _ in range(3)] == ["x\n"] * 3
        root = tmp_path / "root"
        sent = [Entry("small", b"x"), Entry("big", b"x" * 500_000)]
        uses: list[Callable[[], object]] = [
            lambda: transport.run("echo x").text == "x\n",
            lambda: upload(transport, str(root), [Tree("s", sent[:1])]) is None,
            lambda: upload(transport, str(root), [Tree("t", sent)]) is None,
            lambda: transport.run("cat", stdin=iter([b"x"])).text == "x",
            lambda: transport.start("echo x").wait(60).text == "x\n",
        ]  # fmt: skip
        for use in uses:
            process = transport.start("echo begun; read line")
            assert process.stdout.read(6) == b"begun\n"
            with ThreadPoolExecutor() as pool:
                refused.clear()
                waiting = pool.submit(use)
                assert refused.wait(60)
                process.wait(60)
                assert waiting.result(60)
        assert (root / "t/big").stat().st_size == 500_000
        process = transport.start("echo begun; read line")
        assert process.stdout.read(6) == b"begun\n"
        monkeypatch.setattr("dlctl.transport.streams._FREE_S", 0.3)
        with pytest.raises(TransportError, match="one: the server allows no further session"):
            transport.run("echo x")
        process.wait(60)
        assert transport.run("echo x").text == "x\n"
        assert served(server) == 1


def test_words_of_a_script_are_no_refusal_and_it_runs_once(ssh_setup, lasting, tmp_path):
    ran, transport = tmp_path / "ran", lasting("plain")
    end = transport.run(f"echo once >>{ran}; echo 'session request failed' >&2; exit 255")
    assert (end.exit_code, ran.read_text()) == (255, "once\n")


def test_an_ssh_that_does_not_start_is_one_sentence(ssh_setup, lasting, monkeypatch):
    """With an open connection it was an internal error."""
    transport = lasting("plain")
    transport.open(ask=False)
    with monkeypatch.context() as without, pytest.raises(ConnectError, match="ssh did not start"):
        without.setenv("PATH", "/nonexistent")
        transport.run("true")
    transport.disconnect()
    lock = transport._socket.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(ConnectError, match="the folder of its connection"):
        transport.run("true")
    lock.rmdir()


# The socket's folder -----------------------------------------------------------------------------


def test_a_folder_may_have_any_name(lasting, monkeypatch):
    with tempfile.TemporaryDirectory(prefix="a b%c'\"") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        transport = lasting("plain")
        assert [transport.run("echo x").text for _ in range(2)] == ["x\n"] * 2
        assert transport.disconnect()


def test_a_folder_with_a_long_path_is_passed_over_and_one_for_others_refused(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp/" + "x" * 90)
    assert control_path("host").parent == Path(f"/tmp/dlctl-{os.getuid()}")
    with tempfile.TemporaryDirectory() as folder:  # a short path
        monkeypatch.setattr("dlctl.transport.openssh._folders", lambda: [Path(folder)])
        Path(folder).chmod(0o755)
        with pytest.raises(ConnectError, match=f"{folder} is open to other users"):
            control_path("host")


# A one-time code ---------------------------------------------------------------------------------


def code(later: int = 0) -> str:
    """The code of now, or of a later half minute (RFC 6238): none counts twice."""
    step = int(time.time()) // 30 + later
    digest = hmac.new(SECRET, struct.pack(">Q", step), hashlib.sha1).digest()
    place = digest[-1] & 15
    number = struct.unpack(">I", digest[place : place + 4])[0] & 0x7FFFFFFF
    return f"{number % 10**6:06d}"


@pytest.fixture
def with_code(ssh_setup, tmp_path):
    """A server that lets in who knows the code of the moment."""
    if os.getuid() != 0 or PAM_OATH is None or SSHD is None:
        pytest.skip("needs root, and pam_oath: apt-get install libpam-oath")
    service = f"otp{secrets.token_hex(4)}"  # PAM's name for sshd is its program's
    program = tmp_path / service
    program.symlink_to(SSHD)
    rules = Path("/etc/pam.d", service)
    users = tmp_path / "users.oath"
    rules.write_text(
        f"auth required pam_oath.so usersfile={users} window=20 digits=6\n"
        "account required pam_permit.so\nsession required pam_permit.so\n"
    )
    users.write_text(f"HOTP/T30/6 root - {SECRET.hex()}\n")
    users.chmod(0o600)
    asks = "UsePAM yes\nKbdInteractiveAuthentication yes\n"
    methods = "AuthenticationMethods keyboard-interactive"
    try:
        with running_sshd(tmp_path / "otp", [], asks + methods, str(program)) as server:
            yield server
    finally:
        rules.unlink()


def at_terminal(body: Callable[[], None], answer: str) -> str:
    """Run something at a terminal of its own, and type an answer; return what it showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            body()
            os._exit(0)
        os._exit(1)
    shown, typed = b"", False
    with contextlib.suppress(OSError):  # the terminal is closed
        while select.select([terminal], [], [], 30)[0]:
            shown += os.read(terminal, 1000)
            if not typed and b"One-time password" in shown:
                os.write(terminal, answer.encode() + b"\n")
                typed = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    os.close(terminal)
    return shown.decode()


def test_a_question_that_nobody_answers_leaves_the_terminal_as_it_was(
    ssh_setup, lasting, tmp_path, monkeypatch
):
    """ssh was killed, and what was typed stayed hidden."""
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    with running_sshd(tmp_path / "srv", [key]) as server:
        known = server.known_by(tmp_path / "known")
        transport = lasting("locked", block(ssh_setup, "locked", server, known=known, key=key))
        monkeypatch.setattr("dlctl.transport.openssh.PERSON_TIMEOUT_S", 3.0)

        def body():
            with pytest.raises(TransportTimeout):
                transport.open(ask=True)
            assert termios.tcgetattr(0)[3] & termios.ECHO

        assert "Enter passphrase" in at_terminal(body, "")


def test_a_site_that_wants_a_code_asks_once(ssh_setup, lasting, with_code, tmp_path):
    known = with_code.known_by(tmp_path / "known")
    transport = lasting("coded", block(ssh_setup, "coded", with_code, "  User root", known))
    with pytest.raises(AuthError) as caught:
        transport.run("true")
    assert caught.value.hint == "dlctl sites connect it"
    at_terminal(lambda: transport.open(ask=True), code())
    with ThreadPoolExecutor(5) as pool:
        assert [end.text for end in pool.map(transport.run, ["echo x"] * 5)] == ["x\n"] * 5
    assert served(with_code) == 1
    assert transport.disconnect()
    with pytest.raises(AuthError, match="coded: there is no open connection"):
        transport.run("true")


@pytest.mark.slow
def test_a_site_that_asks_is_added_with_a_connection_that_stays(
    ssh_setup, lasting, with_code, tmp_path, monkeypatch
):
    known, config = with_code.known_by(tmp_path / "known"), tmp_path / "ssh_config"
    config.write_text(block(ssh_setup, "coded", with_code, "  User root", known))
    monkeypatch.setenv("DLCTL_SSH_CONFIG", str(config))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "dlctl", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def type_in(*words: str, later: int) -> str:
        argv = [sys.executable, "-m", "dlctl", *words]
        return at_terminal(lambda: os.execv(argv[0], argv), code(later))

    shown = type_in("sites", "add", "c", "coded", "--without-slurm", later=0)
    assert "stays open until 12 h after the last command" in " ".join(shown.split())
    assert "kind: openssh" in (tmp_path / "XDG_CONFIG_HOME/dlctl/sites/c.yml").read_text()
    try:
        assert "is open already" in run("sites", "connect", "c").stdout
        checked = run("doctor", "c", "--json")
        assert '"name": "log-in", "state": "ok"' in " ".join(checked.stdout.split()), checked
        assert served(with_code) == 1
        assert "ended" in run("sites", "disconnect", "c").stdout
        refused = run("doctor", "c")
        command = "sites connect c"
        assert command in [each for each, _ in commands_in(refused.stdout)], refused
        shown = type_in(*command.split(), later=1)
        assert "is open, until 12 h after the last" in " ".join(shown.split())
        assert served(with_code) == 2
    finally:
        assert "ended" in run("sites", "disconnect", "c").stdout
    assert "there was none" in run("sites", "disconnect", "c").stdout
