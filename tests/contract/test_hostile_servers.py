"""One connection on servers and clients that make trouble: what works, and what is said."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_proxy import faulty_proxy
from ssh_servers import block, block_behind, running_sshd, served

from dlctl.errors import ConnectError, ConnectionLost, RemoteCommandError

NEWER_THAN_7_4 = (
    "bindinterface casignaturealgorithms channeltimeout enableescapecommandline "
    "forkafterauthentication knownhostscommand logverbose obscurekeystroketiming permitremoteopen "
    "remotecommand requiredrsasize securitykeyprovider sessiontype setenv stdinnull"
)
OLD_SSH = f"""\
#!{sys.executable}
import fnmatch, os, sys
newer, given, kept, ignored = set({NEWER_THAN_7_4!r}.split()), sys.argv[1:], [], []
while given:
    word = given.pop(0)
    if word != "-o":
        kept.append(word)
        if word == "--":
            kept, given = kept + given, []
        continue
    name, _, value = given.pop(0).partition("=")
    if name.lower() == "ignoreunknown" and not ignored:
        ignored = value.lower().split(",")
    elif name.lower() in newer:
        if not any(fnmatch.fnmatch(name.lower(), each) for each in ignored):
            sys.exit(f"command-line: line 0: Bad configuration option: {{name.lower()}}")
        continue
    kept += ["-o", name + "=" + value]
os.execv({shutil.which("ssh")!r}, ["ssh", *kept])
"""
"""An ssh that refuses and ignores options as version 7.4, of CentOS 7, does."""


@contextlib.contextmanager
def forced(ssh_setup, lasting, folder: Path, options: str) -> Iterator[tuple]:
    """A transport to a server of its own with these options, and the server."""
    with running_sshd(folder / "own", [ssh_setup.key], options) as server:
        known = server.known_by(folder / "known")
        yield lasting("own", block(ssh_setup, "own", server, known=known)), server


def test_a_forced_command_that_prints_and_runs_what_was_asked(ssh_setup, lasting, tmp_path):
    program = "echo 'This system is monitored'; echo careful >&2; eval \"$SSH_ORIGINAL_COMMAND\""
    with forced(ssh_setup, lasting, tmp_path, f"ForceCommand {program}") as (transport, server):
        done = transport.run("cat; echo no >&2; exit 3", stdin=b"x" * 100_000)
        assert (done.exit_code, done.stdout, done.stderr) == (3, b"x" * 100_000, b"no\n")
        assert served(server) == 1


@pytest.mark.parametrize("code", [1, 255])
def test_a_forced_command_that_refuses_is_quoted(ssh_setup, lasting, tmp_path, code):
    program = f"echo 'only sftp is allowed here' >&2; exit {code}"
    with forced(ssh_setup, lasting, tmp_path, f"ForceCommand {program}") as (transport, _):
        with pytest.raises(RemoteCommandError) as caught:
            transport.run("echo x")
        assert f"(exit code {code})" in caught.value.message
        assert "only sftp is allowed here" in caught.value.message


def test_a_server_that_throttles_sees_one_connection_and_the_next_is_explained(ssh_setup, lasting):
    with faulty_proxy(ssh_setup.servers["plain"].port) as throttle:
        throttle.most_accepted = 1
        transport = lasting("few", block_behind(ssh_setup, "few", throttle))
        processes = [transport.start("read line; echo x") for _ in range(10)]
        for process in processes:
            assert process.wait(60).text == "x\n"
        assert throttle.accepted == 1
        transport.disconnect()
        with pytest.raises(ConnectError) as caught:
            transport.run("true")
        assert throttle.accepted == 2, "one try for each command"
        assert "few: the server hung up before the log-in" in caught.value.message
        assert "may limit new connections" in caught.value.hint


def test_a_client_of_2016(ssh_setup, lasting, tmp_path, monkeypatch):
    program = tmp_path / "bin/ssh"
    program.parent.mkdir()
    program.write_text(OLD_SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    assert lasting("plain").run("echo x").text == "x\n"


@pytest.mark.parametrize(
    "config",
    [
        # An Apple's ssh knows UseKeychain; who shares one configuration has others ignore it.
        "IgnoreUnknown UseKeychain\nUseKeychain yes\n",
        "SessionType none\nStdinNull yes\nForkAfterAuthentication yes\n",
    ],
)
def test_options_of_the_users_configuration_replace_no_command(ssh_setup, lasting, config):
    assert lasting("plain", config).run("cat", stdin=b"x").text == "x"


def test_a_master_that_was_killed_leaves_a_socket_that_stops_nobody(ssh_setup, lasting):
    transport = lasting("plain")
    process = transport.start("echo begun; exec sleep 60")
    assert process.stdout.read(6) == b"begun\n"
    checked = subprocess.run(transport._ssh("-O", "check"), capture_output=True, text=True)
    os.kill(int(re.search(r"pid=(\d+)", checked.stderr).group(1)), signal.SIGKILL)
    with pytest.raises(ConnectionLost):
        process.wait(60)
    assert transport._socket.exists()
    assert transport.run("echo again").text == "again\n"


def test_a_configuration_with_a_fault_names_the_line(lasting):
    with pytest.raises(ConnectError, match=r"configuration: .* line 2: .*maybe"):
        lasting("plain", "\nPasswordAuthentication maybe").run("true")
