"""Runs scripts over ssh: one connection, a channel for each script. The only user of paramiko.

Settings as measured: TCP_NODELAY (a script takes 3 ms instead of 44), aes128-gcm first (500 MB/s),
the default window (a bigger one makes downloads slower), streams through exec. This module
translates all errors of paramiko and of sockets.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlctl.errors import (
    AuthError,
    ConnectError,
    ConnectionLost,
    DlctlError,
    HostKeyError,
    TransportError,
    TransportTimeout,
)
from dlctl.sites.files import TransportSettings
from dlctl.transport import ssh_auth
from dlctl.transport.base import Prompt
from dlctl.transport.known_hosts import KnownKey, host_name, known_keys, verify_host_key
from dlctl.transport.script import ScriptTransport
from dlctl.transport.ssh_config import Options, Target, config_file, resolve, split_hop
from dlctl.transport.ssh_socket import dial, run_proxy_command
from dlctl.transport.ssh_streams import Foreign, SshStreams, request
from dlctl.transport.streams import session_refused

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside of paramiko and cryptography
    # paramiko imports invoke, and with it asyncio and unittest.mock, for `Match exec` alone: a
    # third of its cost. `_parse_config` brings it back.
    _invoke = sys.modules.get("invoke")
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko
        from paramiko import ssh_exception
        from paramiko.agent import AgentSSH
    finally:
        del sys.modules["invoke"]
        if _invoke is not None:
            sys.modules["invoke"] = _invoke

# Without a handler Python prints a library's warnings to the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

TRANSLATIONS: dict[type[BaseException], type[TransportError]] = {
    ssh_exception.SSHException: ConnectionLost,
    ssh_exception.AuthenticationException: AuthError,
    ssh_exception.PasswordRequiredException: AuthError,
    ssh_exception.BadAuthenticationType: AuthError,
    ssh_exception.PartialAuthentication: AuthError,
    ssh_exception.UnableToAuthenticate: AuthError,
    ssh_exception.ChannelException: ConnectError,
    ssh_exception.BadHostKeyException: HostKeyError,
    ssh_exception.IncompatiblePeer: ConnectError,
    ssh_exception.ProxyCommandFailure: ConnectError,
    ssh_exception.NoValidConnectionsError: ConnectError,
    ssh_exception.CouldNotCanonicalize: ConnectError,
    ssh_exception.ConfigParseError: ConnectError,
    ssh_exception.MessageOrderError: ConnectError,
    EOFError: ConnectionLost,
    TimeoutError: TransportTimeout,
    socket.timeout: TransportTimeout,  # the same class since Python 3.10
    socket.gaierror: ConnectError,
    ConnectionError: ConnectionLost,
    OSError: ConnectionLost,
    UnicodeError: ConnectError,  # a configuration that is no text, a host such as `a..b`
}
_FOREIGN: Foreign = (ssh_exception.SSHException, EOFError, OSError)
_TRANSLATED: Foreign = (*_FOREIGN, UnicodeError)
_JUMP_LIMIT = 8
_WINDOW_ADJUST, _CHANNEL_CLOSE, _CHANNEL_FAILURE = 93, 97, 100  # RFC 4254, 9
_REKEY_BYTES = 2**34
_WINDOW_BYTES, _PACKET_BYTES = 2**22, 2**17
"""Fewer steps of Python for the same bytes than paramiko's own sizes; see docs/benchmarks.md."""
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class _Connection(paramiko.Transport):
    """Sends nothing to a channel after its end.

    paramiko answers the server's CLOSE in one thread while another one may be about to send data or
    EOF: sshd then drops the whole connection ("unknown channel").
    """

    def __init__(self, sock: socket.socket | paramiko.Channel) -> None:
        super().__init__(sock)
        self._order = threading.Lock()
        self._closed_channels: set[bytes] = set()

    def renew(self, channel: paramiko.Channel) -> None:
        """Note that the server gave the number of a closed channel to a new one."""
        with self._order:
            self._closed_channels.discard(channel.remote_chanid.to_bytes(4, "big"))

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
        self,
        settings: TransportSettings,
        prompt: Prompt | None = None,
        config: Path | None = None,
    ) -> None:
        self._settings = settings
        self._prompt = prompt or ssh_auth.terminal_prompt()
        self._config = config or config_file()
        self._lock = threading.Lock()
        self._closers: list[contextlib.ExitStack] = []
        self._connection: _Connection | None = None
        self.name = _wanted_name(settings)

    def _open(self, command: str) -> SshStreams:
        with self._lock:
            connection = self._connected()
        timeout_s = self._settings.connect_timeout_s
        with _translated(self.name, "opening a channel", timeout_s):
            try:
                channel = self._spare(connection)
            except ssh_exception.ChannelException as error:
                raise session_refused(self.name) from error
            # No reply is requested: it costs a round trip, and waiting for it has no limit.
            request(channel, paramiko.Message(), "exec", command)
        return SshStreams(
            channel, paramiko.Message, lambda: self._spare(connection), _FOREIGN, self.name
        )

    def _spare(self, connection: _Connection) -> paramiko.Channel:
        channel = connection.open_session(
            _WINDOW_BYTES, _PACKET_BYTES, self._settings.connect_timeout_s
        )
        connection.renew(channel)
        return channel

    def _connected(self) -> _Connection:
        if self._connection is None or not self._connection.is_active():
            self.close()
            assert self._settings.host is not None
            target = self._resolve(self._settings.host, self._settings.user, self._settings.port)
            self.name = target.name
            with contextlib.ExitStack() as stack:
                self._connection = self._connect(target, target.proxy_jump, stack, 0)
                self._closers.append(stack.pop_all())
        return self._connection

    def close(self) -> None:
        """End the connection and those of the hops; idempotent."""
        self._connection = None
        while self._closers:
            self._closers.pop().close()

    def _resolve(self, host: str, user: str | None, port: int | None) -> Target:
        return resolve(host, user, port, self._config, _parse_config)

    def _connect(
        self, target: Target, jumps: list[str], stack: contextlib.ExitStack, depth: int
    ) -> _Connection:
        timeout_s = self._settings.connect_timeout_s
        if depth > _JUMP_LIMIT:
            raise ConnectError(f"{target.name}: more than {_JUMP_LIMIT} hops: ProxyJump is a loop")
        sock: Any
        if jumps:
            hop = self._resolve(*split_hop(jumps[-1]))
            # As OpenSSH does: the nearest hop's own configuration says how it is reached.
            before = jumps[:-1] or hop.proxy_jump
            via = self._connect(hop, before, stack, depth + 1)
            what = f"{hop.name} opened the way to it"
            with _translated(target.name, what, timeout_s, ConnectError):
                sock = via.open_channel(
                    "direct-tcpip",
                    (target.hostname, target.port),
                    ("127.0.0.1", 0),
                    timeout=timeout_s,
                )
                via.renew(sock)
        elif target.proxy_command:
            with _translated(target.name, "starting its ProxyCommand", 0, ConnectError):
                sock = run_proxy_command(target.proxy_command, stack)
        else:
            with _translated(target.name, "connecting", timeout_s, ConnectError):
                sock = dial(target.hostname, target.port, timeout_s, self._settings.keepalive_s)
        stack.callback(sock.close)
        return self._handshake(target, sock, stack)

    def _handshake(
        self,
        target: Target,
        sock: socket.socket | paramiko.Channel,
        stack: contextlib.ExitStack,
    ) -> _Connection:
        timeout_s = self._settings.connect_timeout_s
        name = host_name(target.hostname, target.port, target.host_key_alias)
        known = known_keys(target.known_hosts_files, name)
        with _translated(target.name, "setting up the connection", timeout_s, ConnectError):
            connection = _Connection(sock)
            stack.callback(connection.close)
            connection.banner_timeout = connection.handshake_timeout = timeout_s
            connection.auth_timeout = connection.channel_timeout = timeout_s
            # OpenSSH's own limit is 64 GB with these ciphers; paramiko's 0.5 GB can stall.
            connection.packetizer.REKEY_BYTES = _REKEY_BYTES
            _prefer(connection, known)
            connection.start_client(timeout=timeout_s)
            key = connection.get_remote_server_key()
        if not known and not target.host_key_alias and target.port != 22:
            # As OpenSSH does: the same key known for the plain name is good enough.
            plain = known_keys(target.known_hosts_files, host_name(target.hostname, 22, None))
            known = [k for k in plain if k.key == key.asbytes()]
        verify_host_key(target, name, key.get_name(), key.asbytes(), known)
        with _translated(target.name, "logging in", ssh_auth.PERSON_TIMEOUT_S):
            ssh_auth.authenticate(_LoginSession(connection, target), target, self._prompt)
        connection.set_keepalive(int(self._settings.keepalive_s))
        return connection


def target_of(settings: TransportSettings) -> Target:
    """Return how a site is reached; nothing connects.

    Raises:
        ConnectError: the ssh configuration has an error.
    """
    assert settings.host is not None
    return resolve(settings.host, settings.user, settings.port, config_file(), _parse_config)


def _wanted_name(settings: TransportSettings) -> str:
    user = f"{settings.user}@" if settings.user else ""
    port = f":{settings.port}" if settings.port else ""
    return f"{user}{settings.host}{port}"


def _parse_config(host: str, file: Path) -> Options:
    with contextlib.suppress(ImportError):
        vars(paramiko.config)["invoke"] = importlib.import_module("invoke")
    with _translated(host, f"reading {file}", 0, ConnectError):
        found = paramiko.SSHConfig.from_path(str(file)).lookup(host)
    return {key: list(v) if isinstance(v, list) else [str(v)] for key, v in found.items()}


@contextlib.contextmanager
def _translated(
    name: str, what: str, timeout_s: float, lost: type[TransportError] = ConnectionLost
) -> Iterator[None]:
    """Turn foreign errors into ours; `lost` is the error for a connection that broke."""
    began = time.monotonic()
    try:
        yield
    except DlctlError:
        raise
    except _TRANSLATED as error:
        kind = next(TRANSLATIONS[c] for c in type(error).__mro__ if c in TRANSLATIONS)
        # paramiko has no class for a timeout.
        late = 0 < timeout_s <= time.monotonic() - began + 0.1 or "timeout" in str(error).lower()
        if kind is TransportTimeout or (late and kind is not HostKeyError):
            raise TransportTimeout(
                f"{name}: no answer in time ({timeout_s:g} s) while {what}",
                hint="Check host and network, or raise connect_timeout_s in the site's file.",
            ) from error
        kind = lost if kind is ConnectionLost else kind
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if said == "EOFError":
            said = "the connection was lost"
        raise kind(
            f"{name}: while {what}: {said}", hint="Check the address and the network."
        ) from error


def _prefer(connection: paramiko.Transport, known: list[KnownKey]) -> None:
    """Ask for fast ciphers, and for a known kind of host key: another kind would look changed."""
    options = connection.get_security_options()
    fast = [cipher for cipher in _CIPHERS if cipher in options.ciphers]
    options.ciphers = (*fast, *(c for c in options.ciphers if c not in fast))
    types = {key.key_type for key in known if not key.marker}
    if "ssh-rsa" in types:
        types |= {"rsa-sha2-512", "rsa-sha2-256"}
    options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in types))


# Authentication ---------------------------------------------------------------------------------


class _LoginSession:
    """What `ssh_auth` needs from paramiko; an attempt returns the next methods, None if refused."""

    def __init__(self, connection: paramiko.Transport, target: Target) -> None:
        self._connection = connection
        self._user = target.user

    def methods(self) -> list[str]:
        try:
            self._connection.auth_none(self._user)
        except ssh_exception.BadAuthenticationType as error:
            return list(error.allowed_types)
        return []

    def try_key(self, key: object) -> list[str] | None:
        assert isinstance(key, paramiko.PKey)
        return self._attempt(lambda: self._connection.auth_publickey(self._user, key))

    def try_password(self, password: str) -> list[str] | None:
        return self._attempt(
            lambda: self._connection.auth_password(self._user, password, fallback=False)
        )

    def try_answers(self, answer: ssh_auth.AnswerQuestions) -> list[str] | None:
        self._connection.auth_timeout = ssh_auth.PERSON_TIMEOUT_S
        return self._attempt(lambda: self._connection.auth_interactive(self._user, answer))

    def _attempt(self, attempt: ssh_auth.Attempt) -> list[str] | None:
        try:
            return list(attempt())
        except ssh_exception.AuthenticationException as error:
            if not self._connection.is_active():
                raise ssh_auth.closed_by_server(str(error)) from error
            if "timeout" in str(error).lower():
                raise
            return None

    def agent_keys(self, path: str) -> tuple[list[tuple[str, object, bytes]], ssh_auth.Closer]:
        """Return comment, key and public part of each key of an agent."""
        if not hasattr(socket, "AF_UNIX"):  # Windows, where keys come from files
            return [], lambda: None
        agent, sock = AgentSSH(), socket.socket(socket.AF_UNIX)
        sock.settimeout(ssh_auth.PERSON_TIMEOUT_S)  # it may ask its user to confirm
        with contextlib.suppress(OSError, ssh_exception.SSHException):
            sock.connect(path)
            agent._connect(sock)  # type: ignore[attr-defined] # Agent() knows SSH_AUTH_SOCK only
        return [(k.comment or k.name, k, k.asbytes()) for k in agent.get_keys()], sock.close

    def load_key(self, file: Path, passphrase: str | None) -> object:
        """Return the private key in a file.

        Raises:
            ssh_auth.PassphraseNeeded, ssh_auth.Unusable
        """
        problem = "not a key of a known kind"
        for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
            try:
                return kind.from_private_key_file(str(file), passphrase)
            except ssh_exception.PasswordRequiredException:
                raise ssh_auth.PassphraseNeeded from None
            except (ssh_exception.SSHException, OSError, ValueError, IndexError) as error:
                problem = str(error)
        raise ssh_auth.Unusable(problem)

    def with_certificate(self, key: object, file: Path | None) -> bool:
        """Present this certificate, or none, with the key; return False if it does not match."""
        assert isinstance(key, paramiko.PKey)
        key.public_blob = None
        with contextlib.suppress(ValueError, OSError, ssh_exception.SSHException):
            if file is not None:
                key.load_certificate(str(file))
            return True
        return False
