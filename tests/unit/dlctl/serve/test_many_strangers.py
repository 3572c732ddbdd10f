"""Strangers at a server that runs: others notice nothing, and it stays small."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from rest_server import RestServer, free_port

pytestmark = pytest.mark.slow
LIST = "/api/v1/trainings"
IDLE = 10_000
MORE_MEMORY_BYTES = 64 << 20
SERVES = """\
import os, sys
os.setuid(int(sys.argv[1]))
from dlctl.__main__ import main
sys.argv = ["dlctl", "serve", "--socket", sys.argv[2]]
main()
"""
OPENS = """\
import os, socket, sys
os.setuid(int(sys.argv[1]))
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[2])
except PermissionError:
    sys.exit(13)
"""


@pytest.fixture
def server(tmp_path):
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "DLCTL_SITE": "local"}
    made = RestServer(env, tmp_path, free_port())
    made.start()
    yield made
    made.stop()


def memory_bytes(server: RestServer) -> int:
    assert server.process is not None
    told = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(told.partition("VmHWM:")[2].split()[0])


def test_thousands_that_say_nothing_keep_nobody_out(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 1000:
        pytest.skip(f"this user may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + 1000), hard))
    strangers = list[socket.socket]()
    assert server.ask(LIST).status == 200
    before = memory_bytes(server)
    try:
        for number in range(IDLE):
            strangers.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            if number % 500 == 0:
                assert server.ask(LIST).status == 200
        assert server.ask(LIST).status == 200
    finally:
        for each in strangers:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert memory_bytes(server) - before < MORE_MEMORY_BYTES


@pytest.mark.parametrize("word", [b"x-long: " + 65536 * b"x", b"x: y\r\n" * 8192],
                         ids=["one", "many"])  # fmt: skip
def test_a_head_without_end_is_cut_off(server, word):
    before, sent = memory_bytes(server), 0
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)) as stranger:
        stranger.sendall(f"GET {LIST} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n".encode())
        with suppress(ConnectionError):
            while sent < 1 << 30:
                stranger.sendall(word)
                sent += len(word)
        assert sent < 64 << 20
    assert memory_bytes(server) - before < MORE_MEMORY_BYTES
    assert server.ask(LIST).status == 200


def test_another_user_can_not_open_the_socket():
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    # pytest's own folders are for one user alone.
    with tempfile.TemporaryDirectory(prefix="dlctl-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        state, place = folder / "state", folder / "run/serve.sock"
        for each in (state, place.parent):
            each.mkdir()
            os.chown(each, 4001, 4001)
        env = os.environ | {"XDG_STATE_HOME": str(state), "HOME": str(state)}
        with subprocess.Popen([sys.executable, "-c", SERVES, "4001", str(place)], env=env,
                              cwd="/", stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
            assert process.stdout is not None and process.stdout.readline()

            def opened_by(user: int) -> int:
                argv = [sys.executable, "-c", OPENS, str(user), str(place)]
                return subprocess.run(argv, check=False).returncode

            assert opened_by(4001) == 0
            assert opened_by(4002) == 13
            process.terminate()
            assert process.wait(timeout=60) == 0


def test_a_head_that_comes_byte_by_byte_has_some_seconds(server):
    until = time.monotonic() + 60
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nhost: ")
        with suppress(ConnectionError):
            while time.monotonic() < until:
                stranger.sendall(b"x")
                time.sleep(0.2)
    assert time.monotonic() < until, "it was waited for"
