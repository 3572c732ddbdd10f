"""Commands that a program in a container starts outside of it, by a socket that both share."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys

import pytest
from waiting import wait_until

from dlctl.contract.ground import outside
from dlctl.contract.ground.processes import end_child, started

HOST = "%s -m dlctl.contract.ground.outside %s $$ & echo $!; exec sleep 600"


@pytest.fixture
def host(monkeypatch):
    """A container, and its host beside it: (process, pid of the host's server)."""
    name = f"dlctl-test-{secrets.token_hex(8)}"
    monkeypatch.setenv("MARK", "of the host")
    with subprocess.Popen(
        ["/bin/bash", "-c", HOST % (sys.executable, name)], stdout=subprocess.PIPE, text=True
    ) as inside:
        server = int(inside.stdout.readline())
        monkeypatch.setenv(outside.NAME_VARIABLE, name)
        monkeypatch.setenv("MARK", "of the container")
        yield inside, server
        inside.kill()
    wait_until(lambda: not started(server), 20)


def shell(text, tmp_path, *without, **variables):
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        return outside.start(["/bin/sh", "-c", text], tmp_path, without, variables, out, err)


def printed(tmp_path, name="out"):
    return (tmp_path / name).read_text()


@pytest.mark.parametrize("inside", [True, False])
def test_a_command_has_the_output_and_the_code_of_a_child(host, tmp_path, monkeypatch, inside):
    """In a container it has the variables of the host, else those of this process."""
    if not inside:
        monkeypatch.delenv(outside.NAME_VARIABLE)
    monkeypatch.setenv("TOKEN", "x")
    text = 'pwd -P; echo "$MARK ${HOME-none} $NEW"; echo wrong >&2; exit 3'
    call = shell(text, tmp_path, "HOME", NEW="given")
    assert call.wait(30) == call.returncode == call.poll() == 3
    whose = "host" if inside else "container"
    assert printed(tmp_path) == f"{tmp_path.resolve()}\nof the {whose} none given\n"
    assert printed(tmp_path, "err") == "wrong\n"
    end_child(call)  # nothing is left to end


def test_a_signal_reaches_it_and_a_long_one_times_out(host, tmp_path):
    call = shell("trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.1; done", tmp_path)
    wait_until(lambda: printed(tmp_path) == "ready\n")
    with pytest.raises(subprocess.TimeoutExpired):
        call.wait(0.01)
    assert call.poll() is None
    call.send_signal(signal.SIGUSR1)
    assert call.wait(30) == 5 and printed(tmp_path) == "ready\ngot\n"


def test_what_can_not_be_started_says_why(host, tmp_path):
    with (tmp_path / "err").open("wb") as err:
        call = outside.start(["/no/such"], tmp_path, errors=err)
    assert call.wait(30) == 127
    assert "/no/such" in printed(tmp_path, "err")
    call = outside.start([outside.PYTHON, "-c", "raise SystemExit(4)"], tmp_path)
    assert call.wait(30) == 4


def test_it_ends_with_its_caller(host, tmp_path):
    text = (
        "import os, sys; from pathlib import Path; from dlctl.contract.ground import outside\n"
        "command = ['/bin/sh', '-c', 'echo $$ >pid; exec sleep 600']\n"
        f"call = outside.start(command, Path({str(tmp_path)!r}))\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE) as caller:
        wait_until(lambda: (tmp_path / "pid").exists() and printed(tmp_path, "pid"))
        pid = int(printed(tmp_path, "pid"))
        assert started(pid)
        caller.kill()
    wait_until(lambda: not started(pid), 20)


def test_its_caller_notices_that_the_host_is_gone(host, tmp_path):
    _, server = host
    call = shell("echo $$; exec sleep 600", tmp_path)
    pid = int(wait_until(lambda: printed(tmp_path)))
    os.kill(server, signal.SIGKILL)
    assert call.wait(30) == outside.LOST
    os.kill(pid, signal.SIGKILL)  # in a job, its batch system ends what is left


def test_nothing_is_left_when_the_container_ends(host, tmp_path):
    inside, server = host
    call = shell("exec sleep 600", tmp_path)
    inside.kill()
    end_child(call, 1.0)
    wait_until(lambda: not started(server), 20)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_not_answered(host, tmp_path):
    text = (
        "import os, sys; from pathlib import Path; from dlctl.contract.ground import outside\n"
        "os.setuid(65534)\n"
        f"call = outside.start(['/usr/bin/touch', 'made'], Path({str(tmp_path)!r}))\n"
        "sys.exit(call.wait(30))"
    )
    done = subprocess.run([sys.executable, "-c", text], check=False)
    assert done.returncode == outside.LOST and not (tmp_path / "made").exists()
    assert shell("exit 0", tmp_path).wait(30) == 0, "its own user is"
