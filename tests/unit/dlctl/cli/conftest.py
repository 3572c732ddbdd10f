"""What the tests of commands share."""

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from dlctl.record import RecordStore


@pytest.fixture
def trainings(xdg):
    """The record that commands of their own process read."""
    (xdg.state / "dlctl").mkdir(exist_ok=True)
    return RecordStore(xdg.state / "dlctl/record.db")


@pytest.fixture
def add_site(xdg):
    """`add_site("mine", root)` writes the file of a site without Slurm."""

    def add(name, root, transport="{kind: local}"):
        folder = xdg.config / "dlctl/sites"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yml").write_text(
            f"transport: {transport}\nroot: {root}\nscheduler: {{kind: local}}\n"
            "launcher: {kind: mpirun}\nenvironment: {}\n"
        )

    return add


@pytest.fixture
def on_terminal(monkeypatch):
    """`on_terminal(act, columns)`: what a function prints on a terminal of 24 lines."""

    def show(act, columns):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", terminal)
            patched.setattr(sys, "stderr", terminal)
            patched.setenv("COLUMNS", str(columns))
            patched.setenv("NO_COLOR", "1")
            act()
        seen = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while chunk := os.read(ours, 1 << 16):
                seen += chunk
        os.close(ours)
        return seen.decode().replace("\r\n", "\n")

    return show
