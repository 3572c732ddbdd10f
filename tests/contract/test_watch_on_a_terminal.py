"""`dlctl watch` on a real terminal: it draws, heeds keys, and leaves the terminal as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

import pytest
from trainings import submit, write_training

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


@pytest.mark.parametrize("how", ["q", "SIGTERM"])
def test_watch_draws_and_leaves_the_terminal_as_it_was(dlctl, local_site, how):
    folder = write_training(dlctl.cwd / "job", {"command": COMMAND})
    training_id = submit(dlctl, local_site, folder)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [sys.executable, "-m", "dlctl", "watch", training_id],
        env=dlctl.env | {"TERM": "xterm-256color"}, cwd=dlctl.cwd,
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    seen = bytearray()

    def until(text, within_s=120.0):
        end = time.monotonic() + within_s
        while text.encode() not in seen:
            assert time.monotonic() < end, seen.decode(errors="replace")
            seen.extend(_read(master))

    try:
        until("\033[?1049h")
        until("best 0.02041 at 49")
        until("COMPLETED")
        os.write(master, b"l")
        until("[log]")
        os.write(master, b"q" if how == "q" else b"\033[C")  # an arrow key leaves nothing
        if how == "SIGTERM":
            process.terminate()
        until("\033[?1049l")
        assert process.wait(timeout=30) == (0 if how == "q" else 128 + 15)
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)


def _read(master):
    import select

    ready = select.select([master], [], [], 0.5)[0]
    return os.read(master, 65536) if ready else b""
