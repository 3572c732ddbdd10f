"""A folder on a server that speaks SFTP, to read."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import TypeVar

import paramiko

from dlctl.contract.stores import ListedObject
from learner.storage.objects.base import (
    TIMEOUT_S,
    Digests,
    Moved,
    Place,
    Refusal,
    Refused,
    Sink,
    Unavailable,
)

T = TypeVar("T")
_PIECE_BYTES = 1 << 17
"""How much of an object has to arrive until it is counted."""


class Sftp:
    """A folder on a server; see `ObjectStore`."""

    def __init__(self, place: Place) -> None:
        self._settings = place.settings
        self._folder = place.container.rstrip("/")
        self._root = f"{self._folder}/{place.prefix}".rstrip("/")
        self._mine = threading.local()

    def _files(self) -> paramiko.SFTPClient:
        """Return this thread's connection."""
        if not hasattr(self._mine, "files"):
            client = paramiko.SSHClient()  # refuses a server that it does not know
            client.load_system_host_keys()
            get = self._settings.get
            client.connect(
                get("host", ""), int(get("port") or 22), get("user_name"), get("password") or None,
                timeout=TIMEOUT_S,
            )  # fmt: skip
            self._mine.client, self._mine.files = client, client.open_sftp()
        files: paramiko.SFTPClient = self._mine.files
        return files

    def list(self) -> Iterator[ListedObject]:
        """Yield every file in the folder and below."""
        return iter(self._try(lambda files: [*self._below(files, self._root)]))

    def _below(self, files: paramiko.SFTPClient, folder: str) -> Iterator[ListedObject]:
        for entry in sorted(files.listdir_attr(folder or "/"), key=lambda entry: entry.filename):
            path = f"{folder}/{entry.filename}"
            if stat.S_ISDIR(entry.st_mode or 0):
                yield from self._below(files, path)
            elif stat.S_ISLNK(entry.st_mode or 0):
                key = path.removeprefix(f"{self._folder}/")
                entry = self._try(methodcaller("stat", path), key)
                if stat.S_ISDIR(entry.st_mode or 0):  # it may lead back here
                    raise Refused(Refusal.BAD_NAME, "it is a link to a folder", key)
            if stat.S_ISREG(entry.st_mode or 0):
                yield self._object(path, entry)

    def _object(self, path: str, found: paramiko.SFTPAttributes) -> ListedObject:
        size_bytes = found.st_size or 0
        key = path.removeprefix(f"{self._folder}/")
        return ListedObject(key, size_bytes, f"{size_bytes}-{found.st_mtime}")

    def read(self, item: ListedObject, start: int, into: Sink) -> None:
        """Fill a sink with a range of a file."""
        self._try(lambda files: self._fill(files, item, start, into), item.key)

    def _fill(self, files: paramiko.SFTPClient, item: ListedObject, start: int, into: Sink) -> None:
        path = f"{self._folder}/{item.key}"
        with files.open(path, "rb") as file:
            if self._object(path, file.stat()) != item:
                raise Refused(Refusal.CHANGED, key=item.key)
            file.seek(start + into.done_bytes)
            while into.rest and (piece := file.read(min(len(into.rest), _PIECE_BYTES))):
                into.put(piece)
        if into.rest:
            raise Unavailable(f"it sent {into.done_bytes} of {len(into.room)} bytes of {path!r}")

    def write(self, key: str, source: Path, moved: Moved) -> Digests:  # noqa: ARG002
        """Refuse: these servers are only read."""
        raise Refused(Refusal.FORBIDDEN, "stores of this type are only read", key)

    def stat(self, key: str) -> ListedObject | None:
        """Return a file without its content."""
        path = f"{self._folder}/{key}"
        try:
            return self._object(path, self._try(lambda files: files.stat(path), key))
        except Refused as error:
            if error.why is Refusal.NO_OBJECT:
                return None
            raise

    def _try(self, action: Callable[[paramiko.SFTPClient], T], key: str = "") -> T:
        """Return what an action gives; each kind of failure becomes one of the two errors."""
        try:
            return action(self._files())
        except FileNotFoundError as error:
            why = Refusal.NO_OBJECT if key else Refusal.NO_CONTAINER
            raise Refused(why, key=key) from error
        except PermissionError as error:
            raise Refused(Refusal.FORBIDDEN, str(error), key) from error
        except paramiko.AuthenticationException as error:
            raise Refused(Refusal.CREDENTIALS) from error
        except UnicodeDecodeError as error:
            name = error.object.decode(errors="replace")
            raise Refused(Refusal.BAD_NAME, "its name is not UTF-8", name) from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            if isinstance(error, paramiko.BadHostKeyException) or "known_hosts" in str(error):
                raise Refused(Refusal.HOST_KEY) from error
            self._mine.__dict__.clear()  # the next try connects again
            raise Unavailable(f"the connection failed: {error or type(error).__name__}") from error
