"""`dlctl watch` on a real terminal: it draws, heeds keys, and leaves the terminal as it was."""

import fcntl
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from made_search import write_search
from trainings import submit, write_training

from dlctl.contract import State
from dlctl.contract import search as names
from dlctl.record import Record, RecordStore

COMMAND = """\
python3 - <<'EOF'
import json, os, time
path = os.environ["DLCTL_JOB_DIR"] + "/metrics/1-0-program.jsonl"
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path, "w") as f:
    for step in range(1, 50):
        print(json.dumps({"step": step, "time": time.time(), "loss": 1 / step}), file=f)
EOF
"""
ENTER, LEAVE, CLEAR = "\033[?1049h", "\033[?1049l", "\033[2J"


class Terminal:
    """A pseudo-terminal that controls a session of its own, and what was written to it."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.started = []
        self.seen = bytearray()
        self.resize(24, 80)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def until(self, text, within_s=60.0):
        """Wait for a text, and forget what came before its end."""
        end = time.monotonic() + within_s
        while text.encode() not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {bytes(self.seen)!r}"
            if select.select([self.master], [], [], 0.5)[0]:
                self.seen.extend(os.read(self.master, 65536))
        del self.seen[: self.seen.index(text.encode()) + len(text.encode())]

    @property
    def modes(self):
        return termios.tcgetattr(self.slave)

    def start(self, argv, dlctl):
        def control():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        process = subprocess.Popen(
            argv, env=dlctl.env | {"TERM": "xterm-256color", "PS1": "$ "}, cwd=dlctl.cwd,
            stdin=self.slave, stdout=self.slave, stderr=self.slave, preexec_fn=control,
        )  # fmt: skip
        self.started.append(process)
        return process

    def leave(self, shown=LEAVE):
        self.type("q")
        self.until(shown)


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    for process in terminal.started:
        process.kill()
        process.wait()
    os.close(terminal.slave)
    os.close(terminal.master)


@pytest.fixture
def command(dlctl, local_site):
    folder = write_training(dlctl.cwd / "job", {"command": COMMAND})
    return [sys.executable, "-m", "dlctl", "watch", submit(dlctl, local_site, folder)]


@pytest.fixture
def shell(dlctl, terminal):
    process = terminal.start(["bash", "--norc", "--noediting", "-i"], dlctl)
    terminal.until("$ ")
    yield process
    os.killpg(os.tcgetpgrp(terminal.master), signal.SIGKILL)


@pytest.mark.first("q")
@pytest.mark.parametrize("how", ["q", "SIGTERM"])
def test_watch_draws_and_leaves_the_terminal_as_it_was(dlctl, command, terminal, how):
    before = terminal.modes
    process = terminal.start(command, dlctl)
    terminal.until(ENTER)
    terminal.until("best 0.02041 at 49")
    terminal.until("COMPLETED")
    terminal.type("l")
    terminal.until("[log]")
    terminal.resize(30, 60)
    terminal.until(CLEAR)
    terminal.until("\033[30;1H")  # its last line, at once
    if how == "q":
        terminal.leave()
    else:
        terminal.type("\033[C")  # an arrow key leaves nothing
        process.terminate()
        terminal.until(LEAVE)
    assert process.wait(timeout=60) == (0 if how == "q" else 128 + 15)
    assert terminal.modes == before


@pytest.mark.slow
def test_watch_stops_and_continues_with_the_terminal_as_it_belongs(shell, command, terminal):
    before = terminal.modes
    terminal.type(shlex.join(command) + "\n")
    terminal.until(ENTER)
    terminal.until("COMPLETED")
    for _ in range(2):
        terminal.type("\x1a")
        terminal.until(LEAVE)
        terminal.until("Stopped")
        terminal.until("$ ")
        assert terminal.modes == before
        terminal.type("bg; echo in the back''ground\n")
        terminal.until("in the background")
        assert terminal.modes == before, "it leaves the terminal alone in the background"
        assert ENTER.encode() not in terminal.seen
        terminal.type("fg\n")
        terminal.until(ENTER)
        terminal.until(CLEAR)
        terminal.until("best 0.02041 at 49")
        assert not terminal.modes[3] & termios.ICANON
    terminal.leave()
    terminal.until("$ ")
    assert terminal.modes == before


def test_a_search_is_watched_in_the_same_way(dlctl, xdg, terminal, tmp_path):
    folder = tmp_path / "jobs" / "made-3k9f"
    folder.mkdir(parents=True)
    write_search(folder, 40)
    (xdg.state / "dlctl").mkdir()
    RecordStore(xdg.state / "dlctl" / "record.db").add(
        Record("made-3k9f", "made", "local", str(tmp_path), str(folder),
               "2026-01-01T10:00:00+00:00", job_id="1", state=State.CANCELLED, is_search=True)
    )  # fmt: skip
    before = terminal.modes
    process = terminal.start([sys.executable, "-m", "dlctl", "watch", "made-3k9f"], dlctl)
    terminal.until(ENTER)
    terminal.until("[by trials that have ended]")
    terminal.type("t")
    terminal.until("[by time]")
    with (folder / names.TRIALS).open("ab") as file:
        file.write(
            b'{"event":"ask","time":1790002000,"n":1,"trials":[{"number":40,'
            b'"id":"a","point":{"lr":0.5}}]}\n'
        )
    terminal.until("1 outstanding")
    terminal.leave()
    assert process.wait(timeout=60) == 0 and terminal.modes == before
