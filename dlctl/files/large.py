"""Brings large files: in chunks, in order, by one stream or several over the same connection.

A stream has a window of 2 MB for each round trip, with which it does not fill a long link. So while
the rate is low another stream may join, as long as each new one makes a difference. Chunks are
written in order, whichever stream brings them: what is here of a file is always its beginning.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from dlctl.contract.ground.safe_text import printable
from dlctl.errors import TransferError, TransportError
from dlctl.files.listing import IDLE_TIMEOUT_S, parsed_stat
from dlctl.files.partial import Changed, Chunk, Ended, Partial, Stream, chunks_of, stream_script
from dlctl.transport.base import Transport

_AHEAD = 2
"""Requests of a stream that are on their way."""
_STREAMS = 4
_LOOK_S = 1.0
"""How long the rate is measured before another stream may join."""
_FULL_BYTES_PER_S = 100e6
"""At this rate the link is full, or the processors are."""
_GAIN = 1.15
"""What another stream must gain, or no further one joins."""


class Chunks:
    """The chunks of some files, in order, from the streams that bring them.

    The caller's thread reads the first stream. Each further one has a thread, which holds at most
    two chunks that it is not yet their turn to be written.

    Args:
        start: Starts a stream.
        files: What to bring, with what is here of each.
    """

    def __init__(self, start: Callable[[], Stream], files: Sequence[Partial]) -> None:
        self._start = start
        self._todo = self._all(files)
        self._order = threading.Condition()
        self._asked = self._next = 0
        """How many chunks have been asked for, and the number of the one to be written."""
        self._mine: dict[int, Chunk] = {}
        """The chunks that the first stream brings."""
        self._brought: dict[int, tuple[list[bytes], Ended] | BaseException] = {}
        self._streams = [start()]
        self._ended = False
        self._rate = _Rate()

    @staticmethod
    def _all(files: Sequence[Partial]) -> Iterator[Chunk]:
        for number, partial in enumerate(files, 1):
            partial.open()
            yield from chunks_of(partial, number)

    def open(self, partial: Partial) -> None:
        """Get a file ready to be written: one that is whole already has no chunk that does it."""
        with self._order:
            partial.open()

    def take(self, write: Callable[[bytes], None]) -> Ended:
        """Hand over the content of the next chunk, piece by piece; return what the site says of it.

        Raises:
            Changed, TransportError
        """
        first = self._streams[0]
        with self._order:
            while len(first) < _AHEAD and (asked := self._ask(first)):
                self._mine[asked[0]] = asked[1]
            number, self._next = self._next, self._next + 1
            is_mine = number in self._mine
        if is_mine:
            chunk = self._mine.pop(number)
            first.answered()
            for piece in first.pieces(chunk):
                write(piece)
            ended = first.ended()
        else:
            pieces, ended = self._wait_for(number)
            for piece in pieces:
                write(piece)
        return ended

    def _ask(self, stream: Stream) -> tuple[int, Chunk] | None:
        """Ask a stream for the next chunk; the caller holds the lock."""
        chunk = next(self._todo, None)
        if chunk is None:
            return None
        stream.ask(chunk)
        self._asked += 1
        return self._asked - 1, chunk

    def _wait_for(self, number: int) -> tuple[list[bytes], Ended]:
        with self._order:
            self._order.notify_all()
            if not self._order.wait_for(lambda: number in self._brought, IDLE_TIMEOUT_S):
                raise Changed
            found = self._brought.pop(number)
            self._order.notify_all()
        if isinstance(found, BaseException):
            raise found
        return found

    # Further streams ----------------------------------------------------------------------------

    def consider(self, size_bytes: int) -> None:
        """Let another stream join if the rate is low, and the last one made a difference."""
        if len(self._streams) < _STREAMS and self._rate.has_room(size_bytes):
            threading.Thread(target=self._join, name="dlctl-stream", daemon=True).start()

    def _join(self) -> None:
        try:
            stream = self._start()
        except TransportError:  # such as no further session: the others go on
            self._rate.stop()
            return
        with self._order:
            if not self._ended:
                self._streams.append(stream)
        if stream not in self._streams:  # it came too late, and nobody else would end it
            with contextlib.suppress(TransportError):
                stream.kill()
            return
        while (asked := self._ask_in_turn(stream)) is not None:
            number, chunk = asked
            found: tuple[list[bytes], Ended] | BaseException
            try:
                found = list(stream.pieces(chunk)), stream.ended()
            except BaseException as error:  # raised again by the thread that writes
                found = error
            with self._order:
                self._brought[number] = found
                self._order.notify_all()
            if isinstance(found, BaseException):
                return

    def _ask_in_turn(self, stream: Stream) -> tuple[int, Chunk] | None:
        """Ask for a chunk as soon as not too many wait to be written."""
        with self._order:
            self._order.wait_for(lambda: self._ended or len(self._brought) < len(self._streams))
            asked = None if self._ended else self._ask(stream)
            if asked:
                stream.answered()
            return asked

    def finish(self) -> None:
        """End the streams, which have brought everything."""
        with self._order:
            self._ended = True
            self._order.notify_all()
        for stream in self._streams:
            stream.finish()
        self._streams.clear()

    def end(self) -> None:
        """End all streams at once; idempotent."""
        with self._order:
            self._ended = True
            self._order.notify_all()
        while self._streams:
            with contextlib.suppress(TransportError):
                self._streams.pop().kill()


class _Rate:
    """Says when another stream may join."""

    def __init__(self) -> None:
        self._since, self._bytes = time.monotonic(), 0
        self._before = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Let no further stream join."""
        self._stopped = True

    def has_room(self, size_bytes: int) -> bool:
        """Count bytes; return whether a look at the rate is due and says that a stream may join."""
        self._bytes += size_bytes
        elapsed_s = time.monotonic() - self._since
        if self._stopped or elapsed_s < _LOOK_S:
            return False
        rate = self._bytes / elapsed_s
        self._since, self._bytes = time.monotonic(), 0
        if rate >= _FULL_BYTES_PER_S or rate < self._before * _GAIN:
            self._stopped = True
            return False
        self._before = rate
        return True


def bring(
    transport: Transport, base: str, files: Sequence[Partial], on_arrived: Callable[[int], None]
) -> Iterator[tuple[Partial, bool]]:
    """Yield each file that has arrived, and whether it is whole; False: it has changed.

    A file that has changed ends the streams, because nothing tells where the next one begins: files
    behind it are not yielded.

    Args:
        files: What to bring.
        on_arrived: Called with the size of each piece, and with a negative one for what has to be
            sent again.

    Raises:
        TransferError: what has arrived is not what was sent.
        TransportError
    """
    mark = secrets.token_hex(16)
    script = stream_script(base, [partial.file for partial in files], mark)
    chunks = Chunks(
        lambda: Stream(transport.start(script, idle_timeout_s=IDLE_TIMEOUT_S), mark), files
    )
    try:
        for partial in files:
            try:
                _bring_one(transport, partial, chunks, on_arrived)
            except Changed:
                on_arrived(-partial.done_bytes)
                partial.drop()
                yield partial, False
                return
            yield partial, True
        chunks.finish()
    finally:
        chunks.end()
        for partial in files:  # those behind a file that has changed were asked for, too
            partial.close()


def _bring_one(
    transport: Transport, partial: Partial, chunks: Chunks, on_arrived: Callable[[int], None]
) -> None:
    file = partial.file
    chunks.open(partial)
    resumed = partial.done_bytes > 0

    def write(piece: bytes) -> None:
        partial.write(piece)
        on_arrived(len(piece))

    while partial.done_bytes < file.size_bytes:
        before = partial.done_bytes
        digest, stat = chunks.take(write)
        if not file.sha256:
            if not stat or parsed_stat(file.path, stat).stamp != file.stamp:
                raise Changed  # or it is gone
            if not partial.end_chunk(digest):
                partial.drop()
                raise damaged(transport.name, file.path)
        chunks.consider(partial.done_bytes - before)
    if file.sha256 and partial.sha256 != file.sha256:
        if resumed:  # perhaps it was the beginning
            raise Changed
        partial.drop()
        raise damaged(transport.name, file.path)


def damaged(name: str, path: str) -> TransferError:
    """Return the error of a file that came with another sum than it must have."""
    return TransferError(
        f"{name}: {printable(path)} is damaged or still being written: its "
        "sha256 differs from the one listed",
        hint="Try again; if it happens again, the file on the site is damaged.",
    )
