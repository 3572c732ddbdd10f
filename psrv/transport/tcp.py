"""The transport `tcp`: frames over TCP; a connection breaks when its peer dies, and no other does.

A connection begins with a challenge. The opener sends a greeting with a nonce, and the server
answers with its own nonce. The opener then sends an HMAC-SHA256 over both, keyed with the attempt's
secret, and only then does the server send its own. Each proof names its side and the greeting
(attempt, nodes, purpose, model), so none fits another connection or the other direction.

What this protects: without the secret nobody can push, pull, or pose as a primary; an old
connection can't be replayed (nonces), and no frame can be dropped, repeated or inserted (each
header carries its number and 8 bytes of BLAKE2b, keyed for this connection and direction). What it
does not protect: payloads are neither encrypted nor authenticated. An attacker who can change
packets between two nodes can change weights, and one who can read them reads weights, as with MPI.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable

from dlctl.contract.ground.safe_text import printable
from psrv.errors import ServerError
from psrv.transport.base import (
    HEADER,
    DisconnectedError,
    Frame,
    Greeting,
    Kind,
    Purpose,
    RefusedError,
    UnreachableError,
)
from psrv.transport.sockets import connect, listen
from psrv.transport.unauthenticated import Refusals, UnauthenticatedPeers

HANDSHAKE_LIMIT_S = 5.0
"""Limit of a whole handshake, so that a silent peer occupies nothing for long."""
_MAGIC = b"dlctlps" + (b"<" if sys.byteorder == "little" else b">")
_GREETING = struct.Struct("!8sIIIBQ32s")
_NONCE_BYTES = _PROOF_BYTES = 32
_REASON = struct.Struct("!H")
_LONGEST_REASON = 500
_TAG_BYTES = 8
_WELCOME, _REFUSAL = b"\0", b"\1"


class Connection:
    """An ordered, two-way stream of frames. One thread may send while another one receives."""

    def __init__(self, connection: socket.socket, sends: bytes, receives: bytes) -> None:
        self._socket = connection
        self._sends = hashlib.blake2b(key=sends, digest_size=_TAG_BYTES)
        self._receives = hashlib.blake2b(key=receives, digest_size=_TAG_BYTES)
        self._sent = self._received = 0
        self._header = memoryview(bytearray(HEADER.size + _TAG_BYTES))
        # Not in `close`: while a thread is in a call, the descriptor's number must not be reused.
        weakref.finalize(self, connection.close)

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """Send a frame; its `size` is set here. Returns when the payload may be overwritten.

        Raises:
            DisconnectedError: The connection is gone.
        """
        header = HEADER.pack(*frame._replace(size=0 if payload is None else payload.nbytes))
        header += _tag(self._sends, self._sent, header)
        self._sent += 1
        try:
            if payload is None:
                self._socket.sendall(header)
                return
            left = len(header) + payload.nbytes - self._socket.sendmsg((header, payload))
            if left > payload.nbytes:
                self._socket.sendall(header[payload.nbytes - left :])
                left = payload.nbytes
            if left:
                self._socket.sendall(payload[payload.nbytes - left :])
        except OSError as error:
            raise DisconnectedError(f"a connection ended: {error.strerror or error}") from error

    def receive(self, payload: memoryview) -> Frame:
        """Wait for a frame; its payload goes into `payload[:size]`.

        Raises:
            DisconnectedError: The connection is gone, or the frame is not from the other side.
        """
        _read(self._socket, self._header)
        header = self._header[: HEADER.size]
        tag = _tag(self._receives, self._received, header)
        if not hmac.compare_digest(tag, self._header[HEADER.size :]):
            raise DisconnectedError("received a frame that is not the other side's next one")
        self._received += 1
        kind, *fields = HEADER.unpack(header)
        try:
            frame = Frame(Kind(kind), *fields)
        except ValueError:
            raise DisconnectedError(f"received a frame of the unknown kind {kind}") from None
        if frame.size > payload.nbytes:
            raise DisconnectedError(f"received a frame of {frame.size} bytes, {payload.nbytes} fit")
        _read(self._socket, payload[: frame.size])
        return frame

    def readable(self, timeout_s: float) -> bool:
        """Return whether a frame, or the end of the connection, has begun to arrive."""
        poll = select.poll()  # select can't take descriptors from 1024 on
        try:
            poll.register(self._socket, select.POLLIN)
        except ValueError:  # closed by another thread
            return True
        return bool(poll.poll(1000 * timeout_s))

    def close(self) -> None:
        """Close it, for both sides and for threads that wait in it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def dial(host: str, port: int, greeting: Greeting, secret: bytes) -> Connection:
    """Open a connection to another node's server.

    Raises:
        DisconnectedError: Nobody answers, or the connection broke.
        RefusedError: The server refuses us, or does not know the secret.
    """
    deadline = time.monotonic() + HANDSHAKE_LIMIT_S
    try:
        connection = connect(host, port, HANDSHAKE_LIMIT_S)
    except OSError as error:
        raise UnreachableError(
            f"no server answers at {host}:{port}: {error.strerror or error}"
        ) from error
    try:
        hello = _GREETING.pack(_MAGIC, *greeting, os.urandom(_NONCE_BYTES))
        connection.sendall(hello)
        _expect_welcome(connection, deadline)
        transcript = hello + _read_new(connection, _NONCE_BYTES, deadline)
        connection.sendall(_proof(secret, b"opener", transcript))
        _expect_welcome(connection, deadline)
        proof = _read_new(connection, _PROOF_BYTES, deadline)
    except OSError as error:
        connection.close()
        raise DisconnectedError(
            f"the server at {host}:{port} went away: {error.strerror or error}"
        ) from error
    except ServerError:
        connection.close()
        raise
    if not hmac.compare_digest(proof, _proof(secret, b"server", transcript)):
        connection.close()
        raise RefusedError(f"the peer at {host}:{port} is no server of this training")
    return _begin(connection, secret, transcript, opener=True)


class TcpListener:
    """Accepts peers that know the secret and are not refused; each one in a thread of its own.

    Args:
        host: The one address to bind.
        secret: The attempt's.
        refuse: Returns why a greeting is refused, or "". Its sender may be unauthenticated: the
            reason must not contain a secret.
        serve: Serves each connection, in a thread of its own.
        log: Gets a line for each refusal.

    Raises:
        ServerError: No port can be bound.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        refuse: Callable[[Greeting], str],
        serve: Callable[[Greeting, Connection], None],
        log: Callable[[str], None],
    ) -> None:
        self._secret = secret
        self._refuse = refuse
        self._serve = serve
        self._refusals = Refusals(log)
        self._unauthenticated = UnauthenticatedPeers()
        self._socket = _listen(host)
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)

    def start(self) -> None:
        """Begin to accept connections; peers that came earlier wait for that, for a while."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError as error:
                if error.errno == errno.EINVAL:  # closed
                    return
                time.sleep(0.1)  # no descriptors left, say
                continue
            self._unauthenticated.add(connection, str(peer[0]))
            try:
                threading.Thread(
                    target=self._welcome, args=(connection, peer), name="peer", daemon=True
                ).start()
            except RuntimeError as error:  # no threads left
                self._unauthenticated.remove(connection)
                connection.close()
                self._refusals.say(f"refused {_name(peer)}: {error}")
                time.sleep(0.1)

    def _welcome(self, connection: socket.socket, peer: object) -> None:
        try:
            greeting, accepted = self._shake_hands(connection)
        except (OSError, ServerError) as error:
            connection.close()
            self._refusals.say(f"refused {_name(peer)}: {error}")
            return
        finally:
            self._unauthenticated.remove(connection)
        self._serve(greeting, accepted)

    def _shake_hands(self, connection: socket.socket) -> tuple[Greeting, Connection]:
        deadline = time.monotonic() + HANDSHAKE_LIMIT_S
        hello = _read_new(connection, _GREETING.size, deadline)
        magic, attempt, node, to_node, purpose, digest, _ = _GREETING.unpack(hello)
        if magic != _MAGIC:
            raise RefusedError("it speaks another language, or has another byte order")
        try:
            purpose = Purpose(purpose)
        except ValueError:
            raise _refused(connection, f"purpose {purpose} is unknown") from None
        connection.sendall(_WELCOME + (nonce := os.urandom(_NONCE_BYTES)))
        transcript = hello + nonce
        proof = _read_new(connection, _PROOF_BYTES, deadline)
        if not hmac.compare_digest(proof, _proof(self._secret, b"opener", transcript)):
            claims = f"(and says it is node {node} of attempt {attempt})"
            reason = f"it does not know the secret of this training's attempt {claims}"
            raise _refused(connection, reason)
        greeting = Greeting(attempt, node, to_node, purpose, digest)
        if reason := self._refuse(greeting):
            raise _refused(connection, reason)
        connection.sendall(_WELCOME + _proof(self._secret, b"server", transcript))
        return greeting, _begin(connection, self._secret, transcript, opener=False)


def _listen(host: str) -> socket.socket:
    try:
        return listen(host)
    except OSError as error:
        raise ServerError(
            f"the parameter server can't listen at {host}: {error.strerror or error}",
            hint="each node's name must lead to an address of its own that the others reach",
        ) from error


def _begin(connection: socket.socket, secret: bytes, transcript: bytes, opener: bool) -> Connection:
    """Return the connection after its handshake."""
    connection.settimeout(None)
    keys = [_proof(secret, side + b"'s frames", transcript) for side in (b"opener", b"server")]
    return Connection(connection, *(keys if opener else reversed(keys)))


def _proof(secret: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, side + b"\0" + transcript, "sha256")


def _tag(keyed: hashlib.blake2b, number: int, header: bytes | memoryview) -> bytes:
    """Return a header's tag, which only the two sides can compute."""
    one = keyed.copy()
    one.update(number.to_bytes(8, "little"))
    one.update(header)
    return one.digest()


def _read(connection: socket.socket, into: memoryview) -> None:
    """Fill a buffer from a connection."""
    done = 0
    while done < into.nbytes:
        try:
            count = connection.recv_into(into[done:], 0, socket.MSG_WAITALL)
        except OSError as error:
            raise DisconnectedError(f"a connection ended: {error.strerror or error}") from error
        if count == 0:
            raise DisconnectedError("the other side ended the connection")
        done += count


def _read_new(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Return `count` bytes, received before the deadline."""
    found = b""
    while len(found) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DisconnectedError(f"no handshake within {HANDSHAKE_LIMIT_S:g} s")
        connection.settimeout(left_s)
        try:
            part = connection.recv(count - len(found))
        except TimeoutError:
            continue
        if not part:
            raise DisconnectedError("the other side ended the connection")
        found += part
    return found


def _refused(connection: socket.socket, reason: str) -> RefusedError:
    """Tell the other side why it is refused, and return the error for us."""
    text = reason.encode()[:_LONGEST_REASON]
    with contextlib.suppress(OSError):
        connection.sendall(_REFUSAL + _REASON.pack(len(text)) + text)
    return RefusedError(reason)


def _expect_welcome(connection: socket.socket, deadline: float) -> None:
    if _read_new(connection, 1, deadline) == _WELCOME:
        return
    (size,) = _REASON.unpack(_read_new(connection, _REASON.size, deadline))
    text = _read_new(connection, min(size, _LONGEST_REASON), deadline).decode("utf-8", "replace")
    # The other side is not authenticated yet: no line breaks or escapes in our log.
    raise RefusedError(printable(text))


def _name(peer: object) -> str:
    return ":".join(map(str, peer[:2])) if isinstance(peer, tuple) else str(peer)
