"""Opens the byte stream below an ssh connection: TCP, or a ProxyCommand. Raises OSError."""

from __future__ import annotations

import contextlib
import socket
import subprocess

from dlctl.contract.ground.processes import end_child

_SMALL_BYTES = 4096


class _AcknowledgingSocket(socket.socket):
    """Acknowledges received data immediately.

    sshd leaves Nagle's algorithm on for commands: its next small packet waits for our
    acknowledgement, which Linux holds back for 40 ms.
    """

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if len(data) < _SMALL_BYTES:
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def dial(hostname: str, port: int, timeout_s: float, keepalive_s: float) -> socket.socket:
    """Return a connected socket that notices a dead peer."""
    sock = socket.create_connection((hostname, port), timeout_s)
    if hasattr(socket, "TCP_QUICKACK"):
        sock = _AcknowledgingSocket(fileno=sock.detach())
        sock.settimeout(timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if keepalive_s and hasattr(socket, "TCP_USER_TIMEOUT"):
        # If a keep-alive message is not acknowledged, the connection is dead.
        limit_ms = int(max(3 * keepalive_s, timeout_s) * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
    return sock


def run_proxy_command(command: str, stack: contextlib.ExitStack) -> socket.socket:
    """Return a socket whose other end is a command's standard input and output."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise

    def end() -> None:
        ours.close()
        end_child(process, 1.0, ask=False, group=True)

    stack.callback(end)
    return ours
