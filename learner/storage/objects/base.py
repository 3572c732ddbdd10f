"""The interface of an object store, the two ways in which a call can fail, and a file's digests."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dlctl.contract.stores import ListedObject

CHUNK_BYTES = 8 << 20
"""How much of an object one request asks for."""
TIMEOUT_S = 60.0
"""After this long without a byte, a request has failed."""


@dataclass(frozen=True)
class Place:
    """A container in a store, and what is needed to get there."""

    id: str
    """The data store's name in the manifest."""
    container: str
    prefix: str = ""
    """The beginning of the keys that count; empty, or it ends with `/`."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The keys of `connection`, credentials too."""

    @property
    def endpoint(self) -> str:
        """The server, for messages; it never holds a credential."""
        if address := self.settings.get("auth_url") or self.settings.get("url"):
            return address
        if host := self.settings.get("host"):
            port = f":{self.settings['port']}" if self.settings.get("port") else ""
            return f"sftp://{host}{port}"
        return "the default server"

    @property
    def access(self) -> str:
        """Return whose rights count: those of a `key`, those of this `node`, or the `public`'s."""
        return self.settings.get("access") or "key"

    @property
    def etags_are_md5(self) -> bool:
        """Return whether etags are MD5 sums: not where the server encrypts objects."""
        return self.settings.get("etags", "md5") != "opaque"


OPAQUE_HINT = "; if it encrypts objects (SSE-KMS, SSE-C), add `etags: opaque` to `connection`"


class Refusal(enum.Enum):
    """Why a store refused a request; another try would not help."""

    CREDENTIALS = enum.auto()
    EXPIRED = enum.auto()
    """A token that was renewed is not accepted either."""
    KEY_ENDED = enum.auto()
    """A temporary key is used after its end."""
    NO_ROLE = enum.auto()
    """This machine has no role, or can't get a key for it."""
    CLOCK = enum.auto()
    """The clock here and the server's differ by more than a signed request may be old."""
    DISABLED = enum.auto()
    """The account, or the container, is switched off: unpaid, suspended, taken down."""
    FORBIDDEN = enum.auto()
    NO_CONTAINER = enum.auto()
    NO_OBJECT = enum.auto()
    CHANGED = enum.auto()
    """The object is no longer the one of the listing."""
    BAD_NAME = enum.auto()
    HOST_KEY = enum.auto()
    """The server's SSH key is unknown, or another one than before."""
    CERTIFICATE = enum.auto()
    """This machine does not trust the server's certificate."""
    FULL = enum.auto()
    """The user's quota there is used up."""
    OTHER_REGION = enum.auto()
    """The container is in another region than `connection.region`."""
    NO_SUCH_SERVICE = enum.auto()
    """The server answers, but not as a store of this type does."""
    WEB_PAGE = enum.auto()
    """The answer is a page for people, such as the log-in page of a proxy."""


class Refused(Exception):
    """The store answered and refused: the user has to change something."""

    def __init__(self, why: Refusal, detail: str = "", key: str = "", *, instead: str = "") -> None:
        super().__init__(detail)
        self.why, self.detail, self.key = why, detail, key
        self.instead = instead
        """The right value where the server tells it: the container's region, the time between the
        clocks."""


class Unavailable(Exception):
    """The store can't be reached, or failed: the same request may work later."""

    def __init__(self, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s
        """How long the server asks to wait; None if it does not say."""


def title_of(page: bytes) -> str:
    """Return the title of a web page; empty if there is none."""
    found = re.search(rb"(?is)<title[^>]*>(.*?)</title>", page)
    return "" if found is None else " ".join(found[1].decode(errors="replace").split())[:80]


Moved = Callable[[int], None]
"""Called with how many more bytes have moved; with fewer than none if they have to move again."""


class Sink:
    """Memory for a range of an object, which fills from its beginning.

    Args:
        room: As long as the range.
        moved: Called with each piece's size as it arrives.
    """

    def __init__(self, room: memoryview, moved: Moved = lambda _: None) -> None:
        self.room = room
        self._moved = moved
        self.done_bytes = 0

    @property
    def rest(self) -> memoryview:
        """The memory that is still to be filled."""
        return self.room[self.done_bytes :]

    def put(self, piece: bytes) -> None:
        """Append a piece."""
        self.room[self.done_bytes : self.done_bytes + len(piece)] = piece
        self.filled(len(piece))

    def filled(self, size_bytes: int) -> None:
        """Note that so much has been written to the beginning of `rest`."""
        self.done_bytes += size_bytes
        self._moved(size_bytes)


def content_of(store: ObjectStore, item: ListedObject, moved: Moved = lambda _: None) -> bytearray:
    """Return a whole object."""
    content = bytearray(item.size_bytes)
    if content:
        store.read(item, 0, Sink(memoryview(content), moved))
    return content


class ObjectStore(Protocol):
    """A container of objects. Every call raises `Refused` or `Unavailable`."""

    def list(self) -> Iterator[ListedObject]:
        """Yield every object below the place's prefix."""

    def read(self, item: ListedObject, start: int, into: Sink) -> None:
        """Fill a sink with an object's bytes, if its etag is still the same.

        If the store fails in the middle, what has arrived stays, and another call brings the rest.

        Args:
            start: Where in the object the sink's range begins.
        """

    def write(self, key: str, source: Path, moved: Moved) -> Digests:
        """Write a file to an object, and compare what the server has with what was read.

        Args:
            moved: Called with what the server has taken.

        Returns:
            What is known of the file's content.
        """

    def stat(self, key: str) -> ListedObject | None:
        """Return an object without its content; None if there is none."""


PART_BYTES = 16 << 20
"""The size of the parts in which large files are written, unless there would be too many."""
MOST_PARTS = 900
"""Servers of Swift take 1,000 unless they say otherwise, and those of S3 10,000."""
LARGE_BYTES = 4 * PART_BYTES
"""From this size on a file is written in parts."""
_BLOCK_BYTES = 1 << 20


def part_bytes_of(size_bytes: int) -> int:
    """Return the size of the parts of a large file, in whole MiB."""
    return max(PART_BYTES, -(-size_bytes // (MOST_PARTS << 20)) << 20)


@dataclass(frozen=True)
class Digests:
    """A file's size and checksums."""

    size_bytes: int
    sha256: str
    part_md5s: tuple[str, ...]
    """The MD5 of each part of a large file, and of any other file as a whole; in hexadecimal."""

    @property
    def is_large(self) -> bool:
        """Return whether the file is written in parts."""
        return self.size_bytes >= LARGE_BYTES

    @property
    def etags(self) -> tuple[str, ...]:
        """The etags that servers may give to this content: Swift's, S3's."""
        if not self.is_large:
            return self.part_md5s
        of_text = _md5("".join(self.part_md5s).encode())
        of_bytes = _md5(b"".join(map(bytes.fromhex, self.part_md5s)))
        return of_text, f"{of_bytes}-{len(self.part_md5s)}"

    def are_of(self, item: ListedObject | None) -> bool:
        """Return whether an object is known to have this content."""
        found = item is not None and (item.size_bytes, item.etag)
        return found in [(self.size_bytes, etag) for etag in self.etags]


class Reading:
    """One pass over a file, which takes its checksums."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sha256 = hashlib.sha256()
        self._parts: list[Any] = []
        self._size_bytes = 0
        size_bytes = path.stat().st_size
        self.is_large = size_bytes >= LARGE_BYTES
        self.part_bytes = part_bytes_of(size_bytes)

    def __iter__(self) -> Iterator[bytes]:
        threads = ThreadPoolExecutor(2) if self.is_large else contextlib.nullcontext()
        with self._path.open("rb") as file, threads as beside:
            while content := file.read(_BLOCK_BYTES):
                taken = self._take(content, beside)
                yield content  # which moves meanwhile
                for each in taken:
                    each.result()

    def _take(self, content: bytes, beside: ThreadPoolExecutor | None = None) -> list[Future[None]]:
        """Add a block to both checksums."""
        if self._size_bytes % self.part_bytes == 0 and (self.is_large or not self._parts):
            self._parts.append(hashlib.md5(usedforsecurity=False))
        self._size_bytes += len(content)
        updates = [self._sha256.update, self._parts[-1].update]
        if beside is not None:
            return [beside.submit(update, content) for update in updates]
        for update in updates:
            update(content)
        return []

    @property
    def digests(self) -> Digests:
        """The checksums of the content once all of it was read."""
        parts = self._parts or [hashlib.md5(usedforsecurity=False)]
        md5s = tuple(each.hexdigest() for each in parts)
        return Digests(self._size_bytes, self._sha256.hexdigest(), md5s)


def digests_of(path: Path) -> Digests:
    """Read a file once, and return what is known of its content."""
    reading = Reading(path)
    for _ in reading:
        pass
    return reading.digests


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
