"""Servers that fsspec reads: sftp, ftp, smb, and whatever else it has a protocol for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from learner.storage.objects.base import (
    TIMEOUT_S,
    Digests,
    Moved,
    Object,
    Place,
    Refusal,
    Refused,
    Sink,
    Unavailable,
)

_PIECE_BYTES = 1 << 17
"""How much of an object has to arrive until it is counted."""
_OPTIONS = {"user_name": "username", "password": "password", "host": "host"}


def _checked_sftp() -> Any:
    """Return fsspec's SFTP, made to check the server's key: by itself it trusts any server."""
    import paramiko
    from fsspec.implementations.sftp import SFTPFileSystem

    class CheckedSftp(SFTPFileSystem):  # type: ignore[misc]
        def _connect(self) -> None:
            self.client = paramiko.SSHClient()  # refuses a server that it does not know
            self.client.load_system_host_keys()
            self.client.connect(self.host, timeout=TIMEOUT_S, **self.ssh_kwargs)
            self.ftp = self.client.open_sftp()

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path  # fsspec's own takes `#` and `?` for the end of a path

    return CheckedSftp


class Others:
    """A folder on a server, to read; see `ObjectStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        settings = place.settings
        self._options: dict[str, Any] = {
            ours: settings[name] for name, ours in _OPTIONS.items() if settings.get(name)
        }
        if settings.get("port"):
            self._options["port"] = int(settings["port"])
        self._protocol = settings.get("protocol", "sftp")
        self._sftp = _checked_sftp() if self._protocol in ("sftp", "ssh") else None
        self._mine = threading.local()
        self._root = f"{place.container}/{place.prefix}".rstrip("/")

    def _files(self) -> Any:
        """Return this thread's connection: most servers' are for one thread."""
        if not hasattr(self._mine, "files"):
            own = {"skip_instance_cache": True, **self._options}
            made = self._sftp(**own) if self._sftp else fsspec.filesystem(self._protocol, **own)
            self._mine.files = made
        return self._mine.files

    def list(self) -> Iterator[Object]:
        """Yield every file in the folder and below."""
        found = self._try(lambda files: files.find(self._root, detail=True), "")
        if not found and not self._try(lambda files: files.exists(self._root), ""):
            raise Refused(Refusal.NO_CONTAINER)
        for path, row in sorted(found.items()):
            yield self._object(path, row)

    def _object(self, path: str, row: Any) -> Object:
        key = path.lstrip("/").removeprefix(self._place.container.strip("/")).lstrip("/")
        return Object(key, row["size"], f"{row['size']}-{row.get('mtime') or row.get('modify')}")

    def read(self, item: Object, start: int, into: Sink) -> None:
        """Fill a sink with a range of a file."""
        path = self._path(item.key)
        now = self._object(path, self._try(lambda files: files.info(path), item.key))
        if now.etag != item.etag:
            raise Refused(Refusal.CHANGED, key=item.key)
        self._try(lambda files: self._fill(files, path, start, into), item.key)

    def _fill(self, files: Any, path: str, start: int, into: Sink) -> None:
        first, end = start + into.done_bytes, start + len(into.room)
        if not self._sftp:
            into.put(files.cat_file(path, start=first, end=end))
        else:
            with files.open(path, "rb") as file:
                file.seek(first)
                while into.rest and (piece := file.read(min(len(into.rest), _PIECE_BYTES))):
                    into.put(piece)
        if into.rest:
            raise Unavailable(f"it sent {into.done_bytes} of {len(into.room)} bytes of {path!r}")

    def write(self, key: str, source: Path, moved: Moved) -> Digests:  # noqa: ARG002
        """Refuse: these servers are only read."""
        raise Refused(Refusal.FORBIDDEN, "stores of this type are only read", key)

    def stat(self, key: str) -> Object | None:
        """Return a file without its content."""
        path = self._path(key)
        try:
            return self._object(path, self._try(lambda files: files.info(path), key))
        except Refused as error:
            if error.why is Refusal.NO_OBJECT:
                return None
            raise

    def _path(self, key: str) -> str:
        return f"{self._place.container.rstrip('/')}/{key}"

    def _try(self, action: Any, key: str) -> Any:
        """Return what an action gives; each kind of failure becomes one of the two errors."""
        try:
            return action(self._files())
        except FileNotFoundError as error:
            why = Refusal.NO_OBJECT if key else Refusal.NO_CONTAINER
            raise Refused(why, key=key) from error
        except PermissionError as error:
            raise Refused(Refusal.FORBIDDEN, str(error), key) from error
        except (ModuleNotFoundError, Unavailable):
            raise
        except Exception as error:
            if "uthentication" in type(error).__name__:
                raise Refused(Refusal.CREDENTIALS) from error
            if "known_hosts" in str(error) or type(error).__name__ == "BadHostKeyException":
                raise Refused(Refusal.HOST_KEY) from error
            if isinstance(error, (ImportError, TypeError, ValueError)):
                raise Refused(Refusal.NO_SUCH_SERVICE, str(error)) from error
            raise Unavailable(f"the connection failed: {error or type(error).__name__}") from error
