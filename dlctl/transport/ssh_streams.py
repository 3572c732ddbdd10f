"""The streams of one ssh channel, with a time limit on every step.

Works on a paramiko channel without importing paramiko: `ssh.py` passes in what is needed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from dlctl.errors import ConnectionLost, TransportTimeout
from dlctl.transport.streams import end_group

Foreign = tuple[type[BaseException], ...]
"""What paramiko raises when a connection or a channel breaks."""
_CHANNEL_REQUEST = bytes([98])  # SSH_MSG_CHANNEL_REQUEST
_SLICE_S = 0.25
"""How often a waiting thread checks whether the connection is alive."""
_PACKET_BYTES = 32 * 1024
_TERM_GRACE_S = 0.5
_KILL_TIMEOUT_S = 5.0


def request(channel: Any, message: Any, kind: str, word: str) -> None:
    """Send a channel request without asking for a reply (RFC 4254, 6.5 and 6.9)."""
    message.add_byte(_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string(kind)
    message.add_boolean(False)
    message.add_string(word)
    channel.transport._send_user_message(message)


class SshStreams:
    """The streams of one channel."""

    def __init__(
        self,
        channel: Any,
        new_message: Callable[[], Any],
        open_channel: Callable[[], Any],
        foreign: Foreign,
        name: str,
    ) -> None:
        self._channel = channel
        self._connection = channel.transport
        self._new_message = new_message
        self._open_channel = open_channel
        self._foreign = foreign
        self._name = name
        channel.settimeout(_SLICE_S)

    def read(self, timeout_s: float) -> bytes:
        """Return some bytes of standard output; b"" at its end."""
        chunk = self._read(self._channel.recv, timeout_s)
        if not chunk:
            self._refuse_lost()
        return chunk

    def read_error(self, timeout_s: float) -> bytes:
        """Return some bytes of standard error; b"" at its end."""
        return self._read(self._channel.recv_stderr, timeout_s)

    def _read(self, receive: Callable[[int], bytes], timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return receive(_PACKET_BYTES * 4)
            except TimeoutError:
                self._refuse_late(deadline, timeout_s)
            except self._foreign as error:
                raise ConnectionLost(
                    f"{self._name}: the connection was lost: {error}", hint="Try again."
                ) from error

    def _refuse_late(self, deadline: float, timeout_s: float) -> None:
        self._refuse_lost()
        if time.monotonic() >= deadline:
            raise TransportTimeout(
                f"{self._name}: a command made no progress for {timeout_s:g} s",
                hint="The host may be overloaded: try again.",
            )

    def _refuse_lost(self) -> None:
        if not self._connection.is_active() and self._channel.exit_status < 0:
            raise ConnectionLost(
                f"{self._name}: the connection was lost while a command ran",
                hint="Try again when the network is back.",
            )

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """Write all of it."""
        view = memoryview(data)
        deadline = time.monotonic() + timeout_s
        while view:
            try:
                sent = int(self._channel.send(bytes(view[:_PACKET_BYTES])))
            except TimeoutError:
                self._refuse_late(deadline, timeout_s)
                continue
            except self._foreign:
                self._refuse_lost()
                raise BrokenPipeError from None
            if not sent:
                self._refuse_lost()
                raise BrokenPipeError
            view = view[sent:]
            deadline = time.monotonic() + timeout_s

    def close_stdin(self) -> None:
        """End standard input."""
        with contextlib.suppress(*self._foreign):
            self._channel.shutdown_write()

    def exit_code(self, timeout_s: float) -> int:
        """Wait for the exit code; 255 after a signal, which paramiko does not name."""
        deadline = time.monotonic() + timeout_s
        while not self._channel.status_event.wait(min(_SLICE_S, timeout_s)):
            self._refuse_late(deadline, timeout_s)
        self._refuse_lost()
        code = int(self._channel.exit_status)
        return code if code >= 0 else 255

    def kill(self, pid: int | None) -> None:
        """Send SIGTERM to the remote process group, then SIGKILL, and close the channel.

        For root and under a forced command sshd refuses this: a second channel does it then.
        """
        with contextlib.suppress(*self._foreign):
            request(self._channel, self._new_message(), "signal", "TERM")
            if pid and not self._channel.status_event.wait(_TERM_GRACE_S):
                channel = self._open_channel()
                request(channel, self._new_message(), "exec", end_group(pid))
                channel.status_event.wait(_KILL_TIMEOUT_S)
                channel.close()
        self.release()

    def release(self) -> None:
        """Close the channel."""
        with contextlib.suppress(*self._foreign):
            self._channel.close()
