"""Runs scripts over ssh by paramiko, for machines without an ssh client: a channel for each script.

Settings as measured: TCP_NODELAY (a script takes 3 ms instead of 44), AES-GCM first, streams
through exec. All errors of paramiko and of sockets end here.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dlctl.contract.ground.processes import end_child
from dlctl.errors import (
    AuthError,
    ConnectError,
    ConnectionLost,
    DlctlError,
    TransportError,
    TransportTimeout,
)
from dlctl.sites.files import TransportSettings
from dlctl.transport.base import Prompt
from dlctl.transport.script import ScriptTransport
from dlctl.transport.ssh_config import Target, split_hop, target_of
from dlctl.transport.streams import end_group, session_refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside of paramiko and cryptography
    import paramiko  # after ssh_config, which leaves out a part of it

    from dlctl.transport.ssh_login import USE_OPENSSH, HostKeys, Login

# Without a handler Python prints a library's warnings to the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_FOREIGN = (paramiko.SSHException, EOFError, OSError)
_JUMP_LIMIT = 8
_WINDOW_ADJUST, _CHANNEL_CLOSE, _CHANNEL_FAILURE = 93, 97, 100  # RFC 4254, 9
_CHANNEL_REQUEST = bytes([98])
_REKEY_BYTES = 2**34
_WINDOW_BYTES, _PACKET_BYTES = 2**22, 2**17
"""Fewer steps of Python for the same bytes than paramiko's own sizes; see docs/benchmarks.md."""
_PIECE_BYTES = 32 * 1024
_SLICE_S = 0.25
"""How often a waiting thread checks whether the connection is alive."""
_TERM_GRACE_S, _KILL_TIMEOUT_S = 0.5, 5.0


class _AcknowledgingSocket(socket.socket):
    """Acknowledges at once: sshd's next small packet waits for that, and Linux takes 40 ms."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        if len(data) < 4096:
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def _dial(target: Target, timeout_s: float, keepalive_s: float) -> socket.socket:
    """Return a connected socket that notices a dead peer."""
    sock = socket.create_connection((target.hostname, target.port), timeout_s)
    if hasattr(socket, "TCP_QUICKACK"):
        sock = _AcknowledgingSocket(fileno=sock.detach())
        sock.settimeout(timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if keepalive_s and hasattr(socket, "TCP_USER_TIMEOUT"):
        limit_ms = int(max(3 * keepalive_s, timeout_s) * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
    return sock


def _run_proxy_command(command: str, stack: contextlib.ExitStack) -> socket.socket:
    """Return a socket whose other end is a command; paramiko's own spins when it has ended."""
    ours, theirs = socket.socketpair()
    stack.callback(ours.close)
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    stack.callback(lambda: end_child(process, 1.0, ask=False, group=True))
    return ours


# The connection ---------------------------------------------------------------------------------


class _Connection(paramiko.Transport):
    """Sends nothing to a channel after its end.

    paramiko answers the server's CLOSE in one thread while another one may be about to send data or
    EOF: sshd then drops the whole connection ("unknown channel").
    """

    def __init__(self, sock: Any, **more: Any) -> None:
        super().__init__(sock, **more)
        self._order = threading.Lock()
        self._closed_channels: set[bytes] = set()
        # OpenSSH's own limit is 64 GB with these ciphers; paramiko's 0.5 GB can stall.
        self.packetizer.REKEY_BYTES = _REKEY_BYTES
        options = self.get_security_options()
        options.ciphers = tuple(sorted(options.ciphers, key=lambda name: "-gcm@" not in name))

    def renew(self, channel: paramiko.Channel) -> paramiko.Channel:
        """Note that the server gave the number of a closed channel to a new one."""
        with self._order:
            self._closed_channels.discard(channel.remote_chanid.to_bytes(4, "big"))
        return channel

    def _send_user_message(self, data: paramiko.Message) -> None:
        head = data.asbytes()[:5]
        kind, number = head[0], head[1:]
        if not _WINDOW_ADJUST <= kind <= _CHANNEL_FAILURE:
            super()._send_user_message(data)  # type: ignore[misc] # not in its stubs
            return
        with self._order:
            if number in self._closed_channels:
                return
            if kind == _CHANNEL_CLOSE:
                self._closed_channels.add(number)
            super()._send_user_message(data)  # type: ignore[misc]


class SshTransport(ScriptTransport):
    """One connection to one host, opened on first use and again after it was lost."""

    def __init__(
        self, settings: TransportSettings, prompt: Prompt | None = None, config: Path | None = None
    ) -> None:
        self._settings, self._prompt, self._config = settings, prompt, config
        self._lock = threading.Lock()
        self._closers = contextlib.ExitStack()
        self._connection: _Connection | None = None
        user = f"{settings.user}@" if settings.user else ""
        self.name = f"{user}{settings.host}{f':{settings.port}' if settings.port else ''}"

    def _open(self, command: str) -> SshStreams:
        with self._lock:
            if self._connection is None or not self._connection.is_active():
                self.close()
                target = target_of(self._settings, self._config)
                self.name = target.name
                self._connection = self._connect(target, target.jumps, 0)
            connection = self._connection
        with _translated(self.name, "opening a channel", self._settings.connect_timeout_s):
            try:
                streams = SshStreams(lambda: self._channel(connection), self.name)
            except paramiko.ChannelException as error:
                raise session_refused(self.name) from error
            streams.request("exec", command)
        return streams

    def _channel(self, connection: _Connection) -> paramiko.Channel:
        limit_s = self._settings.connect_timeout_s
        return connection.renew(connection.open_session(_WINDOW_BYTES, _PACKET_BYTES, limit_s))

    def close(self) -> None:
        """End the connection and those of the hops; idempotent."""
        self._connection = None
        self._closers.close()

    def _connect(self, target: Target, jumps: list[str], depth: int) -> _Connection:
        limit_s = self._settings.connect_timeout_s
        if depth > _JUMP_LIMIT:
            raise ConnectError(f"{target.name}: more than {_JUMP_LIMIT} hops: ProxyJump is a loop")
        sock: Any
        if jumps:
            host, user, port = split_hop(jumps[-1])
            way = {"host": host, "user": user, "port": port}
            hop = target_of(self._settings.model_copy(update=way), self._config)
            # As OpenSSH does: the nearest hop's own configuration says how it is reached.
            via = self._connect(hop, jumps[:-1] or hop.jumps, depth + 1)
            with _translated(
                target.name, f"{hop.name} opened the way to it", limit_s, ConnectError
            ):
                sock = via.renew(
                    via.open_channel("direct-tcpip", (target.hostname, target.port),
                                     ("127.0.0.1", 0), timeout=limit_s)
                )  # fmt: skip
        elif command := target.option("proxycommand"):
            with _translated(target.name, "starting its ProxyCommand", 0, ConnectError):
                sock = _run_proxy_command(command, self._closers)
        else:
            with _translated(target.name, "connecting", limit_s, ConnectError):
                sock = _dial(target, limit_s, self._settings.keepalive_s)
        self._closers.callback(sock.close)
        return self._log_in(target, sock)

    def _log_in(self, target: Target, sock: Any) -> _Connection:
        limit_s, client = self._settings.connect_timeout_s, paramiko.SSHClient()
        keys = HostKeys(target)
        self._closers.callback(client.close)
        client.set_missing_host_key_policy(keys)
        login = Login(target, self._prompt)

        def connection(*a: Any, **more: Any) -> _Connection:
            made = _Connection(*a, **more)
            keys.prefer(made.get_security_options())
            made.handshake_timeout = limit_s
            return made

        with _translated(target.name, login.step, limit_s, ConnectError):
            client.connect(
                target.hostname, target.port, target.user, sock=sock, timeout=limit_s,
                banner_timeout=limit_s, auth_timeout=limit_s, channel_timeout=limit_s,
                transport_factory=connection,
                auth_strategy=login,  # type: ignore[arg-type] # no more is asked of it
            )  # fmt: skip
        made = client.get_transport()
        assert isinstance(made, _Connection)
        made.set_keepalive(int(self._settings.keepalive_s))
        return made


@contextlib.contextmanager
def _translated(
    name: str, what: str | Callable[[], str], limit_s: float,
    lost: type[TransportError] = ConnectionLost,
) -> Iterator[None]:  # fmt: skip
    """Turn foreign errors into ours; `lost` is the error for a connection that broke."""
    began = time.monotonic()
    try:
        yield
    except DlctlError:
        raise
    except (*_FOREIGN, UnicodeError, ValueError, subprocess.TimeoutExpired) as error:
        what = what if isinstance(what, str) else what()
        problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        # paramiko has no class for a timeout.
        late = 0 < limit_s <= time.monotonic() - began + 0.1 or "timeout" in problem.lower()
        if isinstance(error, TimeoutError | subprocess.TimeoutExpired) or late:
            raise TransportTimeout(
                f"{name}: no answer in time ({limit_s:g} s) while {what}",
                hint="Check host and network, or raise connect_timeout_s in the site's file.",
            ) from error
        kind = AuthError if isinstance(error, paramiko.AuthenticationException) else lost
        problem = "the connection was lost" if problem == "EOFError" else problem
        hint = "Check the address and the network."
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            hint = f"The system's ssh knows more algorithms: {USE_OPENSSH}"
        raise kind(f"{name}: while {what}: {problem}", hint=hint) from error


# A channel --------------------------------------------------------------------------------------


class SshStreams:
    """The streams of one channel, with a time limit on every step.

    Args:
        open_channel: Opens this channel, and another one that ends the command if it has to.
    """

    def __init__(self, open_channel: Callable[[], paramiko.Channel], name: str) -> None:
        self._open_channel, self._name = open_channel, name
        self._channel: Any = open_channel()
        self._channel.settimeout(_SLICE_S)

    def request(self, kind: str, word: str, channel: Any = None) -> None:
        """Send a request without asking for a reply: it costs a round trip, and has no limit."""
        channel, message = channel or self._channel, paramiko.Message()
        message.add_byte(_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string(kind)
        message.add_boolean(False)
        message.add_string(word)
        channel.transport._send_user_message(message)

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
                return receive(_PIECE_BYTES * 4)
            except TimeoutError:
                self._refuse_late(deadline, timeout_s)
            except _FOREIGN as error:
                raise self._lost(f"the connection was lost: {error}") from error

    def _lost(self, why: str = "the connection was lost while a command ran") -> ConnectionLost:
        return ConnectionLost(f"{self._name}: {why}", hint="Try again when the network is back.")

    def _refuse_late(self, deadline: float, timeout_s: float) -> None:
        self._refuse_lost()
        if time.monotonic() >= deadline:
            raise TransportTimeout(
                f"{self._name}: a command made no progress for {timeout_s:g} s",
                hint="The host may be overloaded: try again.",
            )

    def _refuse_lost(self) -> None:
        if not self._channel.transport.is_active() and self._channel.exit_status < 0:
            raise self._lost()

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        """Write all of it."""
        view = memoryview(data)
        deadline = time.monotonic() + timeout_s
        while view:
            try:
                sent = int(self._channel.send(bytes(view[:_PIECE_BYTES])))
            except TimeoutError:
                self._refuse_late(deadline, timeout_s)
                continue
            except _FOREIGN:
                sent = 0
            if not sent:
                self._refuse_lost()
                raise BrokenPipeError
            view = view[sent:]
            deadline = time.monotonic() + timeout_s

    def close_stdin(self) -> None:
        """End standard input."""
        with contextlib.suppress(*_FOREIGN):
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
        with contextlib.suppress(*_FOREIGN):
            self.request("signal", "TERM")
            if pid and not self._channel.status_event.wait(_TERM_GRACE_S):
                channel = self._open_channel()
                self.request("exec", end_group(pid), channel)
                channel.status_event.wait(_KILL_TIMEOUT_S)
                channel.close()
        self.release()

    def release(self) -> None:
        """Close the channel."""
        with contextlib.suppress(*_FOREIGN):
            self._channel.close()
