"""A transport for readers that share what they read with another thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

    from dlctl.transport import Completed, Process, Transport


class Unlocking:
    """A transport that lets go of a lock while it waits for the site."""

    def __init__(self, transport: Transport, lock: threading.RLock) -> None:  # type: ignore[valid-type, unused-ignore]
        self._transport, self._lock, self.name = transport, lock, transport.name

    def start(self, script: str, **options: Any) -> Process:
        """Start a script."""
        with self._released():
            return self._transport.start(script, **options)

    def run(
        self, script: str, *, stdin: bytes | Iterable[bytes] = b"", **options: Any
    ) -> Completed:
        """Run a script to its end."""
        with self._released():
            return self._transport.run(script, stdin=stdin, **options)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()

    @contextmanager
    def _released(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
