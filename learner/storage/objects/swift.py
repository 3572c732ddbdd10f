"""OpenStack Swift by plain HTTP: containers, objects, static and dynamic large objects.

Tokens come from its own authentication (v1), or from keystone (v3).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from dlctl.contract.stores import ListedObject
from learner.storage.objects.base import (
    LARGE_BYTES,
    Digests,
    Moved,
    Place,
    Refusal,
    Refused,
    Sink,
    Unavailable,
    digests_of,
    part_bytes_of,
)
from learner.storage.objects.http_client import Answer, HttpClient, from_json, no_service

_SEGMENT_THREADS = 4
_EMPTY = hashlib.md5(b"", usedforsecurity=False).hexdigest()


class Swift:
    """A container in Swift; see `ObjectStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._http = HttpClient()
        self._session = Session(place, self._http)

    def list(self) -> Iterator[ListedObject]:
        """Yield every object below the prefix, large objects with their parts."""
        yield from self._list(self._place.container, self._place.prefix)

    def _list(self, container: str, prefix: str) -> Iterator[ListedObject]:
        marker = ""
        while True:
            query = {"format": "json", "prefix": prefix, "marker": marker}
            answer = self._ask("GET", f"{quote(container, safe='')}?{urlencode(query)}")
            if answer.status == 404:
                raise Refused(Refusal.NO_CONTAINER)
            _expect(answer, (200, 204), container)
            rows = from_json(answer)
            for row in rows:
                if not _marks_folder(row):
                    yield self._object(row)
            if not rows:  # each server has its own size of a page
                return
            marker = rows[-1]["name"]

    def _object(self, row: Mapping[str, Any]) -> ListedObject:
        key, etag = row["name"], row["hash"]
        if "slo_etag" in row or (row["bytes"] == 0 and etag == _EMPTY):
            return self.stat(key) or ListedObject(
                key, row["bytes"], etag
            )  # a large object, or empty
        return ListedObject(key, row["bytes"], etag)

    def read(self, item: ListedObject, start: int, into: Sink) -> None:
        """Fill a sink with a range of an object."""
        first, end = start + into.done_bytes, start + len(into.room)
        wanted = {"Range": f"bytes={first}-{end - 1}", "If-Match": f'"{item.etag}"'}
        answer = self._ask("GET", self._path(item.key), wanted, start=first, into=into)
        if answer.status == 404:
            raise Refused(Refusal.NO_OBJECT, key=item.key)
        if answer.status in (412, 416):
            raise Refused(Refusal.CHANGED, key=item.key)
        _expect(answer, (200, 206), item.key)

    def stat(self, key: str) -> ListedObject | None:
        """Return an object without its content."""
        answer = self._ask("HEAD", self._path(key))
        if answer.status == 404:
            return None
        _expect(answer, (200, 204), key)
        etag = answer.headers.get("etag", "").strip('"')
        size_bytes = int(answer.headers.get("content-length", "0"))
        return ListedObject(key, size_bytes, etag, [*self._parts(key, answer.headers)])

    def _parts(self, key: str, headers: Mapping[str, str]) -> Iterable[int]:
        """Return the sizes of a large object's segments; none of any other object."""
        if headers.get("x-static-large-object", "").lower() == "true":
            answer = self._ask("GET", f"{self._path(key)}?multipart-manifest=get&format=raw")
            _expect(answer, (200,), key)
            rows = from_json(answer)
            if any("range" in row or "size_bytes" not in row or row.get("sub_slo") for row in rows):
                return ()
            return (int(row["size_bytes"]) for row in rows)
        if segments := headers.get("x-object-manifest"):
            container, _, prefix = unquote(segments).partition("/")
            return (segment.size_bytes for segment in self._list(container, prefix))
        return ()

    def write(self, key: str, source: Path, moved: Moved) -> Digests:
        """Write a file, a large one as segments and a static large object that names them."""
        size_bytes = source.stat().st_size
        if size_bytes < LARGE_BYTES:
            known = digests_of(source)
            with source.open("rb") as content:
                self._put(self._path(key), content, known.size_bytes, known.part_md5s[0])
            moved(known.size_bytes)
            return known
        container = f"{self._place.container}_segments"
        made = self._ask("PUT", quote(container, safe=""))
        _expect(made, (201, 202), container)
        with ThreadPoolExecutor(_SEGMENT_THREADS + 1) as pool:
            whole = pool.submit(digests_of, source)
            length = part_bytes_of(size_bytes)
            rows = list(pool.map(
                lambda start: self._segment(container, key, source, start, length, moved),
                range(0, size_bytes, length),
            ))  # fmt: skip
            known = whole.result()
        body = json.dumps(rows).encode()
        path = f"{self._path(key)}?multipart-manifest=put"
        _expect(self._ask("PUT", path, body=body), (201, 202), key)
        found = self.stat(key)
        if not known.are_of(found):
            raise Unavailable(f"what it has of {key!r} is not what was sent")
        return known

    def _segment(
        self, container: str, key: str, source: Path, start: int, length: int, moved: Moved
    ) -> dict[str, Any]:
        """Write a part of a file, and return its line in the list of a large object's segments."""
        with source.open("rb") as file:
            file.seek(start)
            content = file.read(length)
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        name = f"{key}/{start // length:08}-{md5}"
        path = f"{quote(container, safe='')}/{quote(name)}"
        answer = self._ask("HEAD", path)  # it may be there, from an interrupted try
        if (answer.status, answer.headers.get("etag")) != (200, md5):
            self._put(path, content, len(content), md5)
        moved(len(content))
        return {"path": f"/{container}/{name}", "etag": md5, "size_bytes": len(content)}

    def _put(self, path: str, content: bytes | IO[bytes], size_bytes: int, md5: str) -> None:
        headers = {"Content-Length": str(size_bytes), "ETag": md5}
        answer = self._ask("PUT", path, headers, content)
        if answer.status == 404:
            raise Refused(Refusal.NO_CONTAINER)
        if answer.status == 413:
            raise Refused(Refusal.FULL, "413")
        if answer.status == 422 or answer.headers.get("etag", md5).strip('"') != md5:
            raise Unavailable("what arrived is not what was sent")
        _expect(answer, (201, 202), path)

    def _path(self, key: str) -> str:
        return f"{quote(self._place.container, safe='')}/{quote(key)}"

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] = b"", start: int = 0, into: Sink | None = None,
    ) -> Answer:  # fmt: skip
        """Send a request with a token; one that has expired is renewed, once."""
        at = body.tell() if not isinstance(body, bytes) else 0
        for is_last in (False, True):
            token, url = self._session.token()
            given = {"X-Auth-Token": token, **(headers or {})}
            answer = self._http.request(method, f"{url}/{path}", given, body, start, into)
            if answer.status != 401:
                break
            if is_last:
                raise Refused(Refusal.EXPIRED, "401")
            self._session.renew(token)
            if not isinstance(body, bytes):
                body.seek(at)
        if answer.status == 403:
            raise Refused(Refusal.FORBIDDEN, "403")
        return answer


def _marks_folder(row: Mapping[str, Any]) -> bool:
    is_named_so = row["name"].endswith("/") or row.get("content_type") == "application/directory"
    return row["bytes"] == 0 and is_named_so


def _expect(answer: Answer, allowed: tuple[int, ...], key: str) -> None:
    if answer.status not in allowed:
        body = " ".join(answer.body[:200].decode(errors="replace").split())
        raise Refused(Refusal.NO_SUCH_SERVICE, f"{answer.status} {body}".strip(), key)


class Session:
    """A token and the address that it opens; all threads share them."""

    def __init__(self, place: Place, http: HttpClient) -> None:
        self._place = place
        self._http = http
        self._lock = threading.Lock()
        self._known: tuple[str, str] | None = None

    def token(self) -> tuple[str, str]:
        """Return the token and the address of the account, without a slash at its end."""
        with self._lock:
            if self._known is None:
                self._known = self._v3() if self._is_v3() else self._v1()
            return self._known

    def renew(self, expired: str) -> None:
        """Forget a token that the server no longer accepts."""
        with self._lock:
            if self._known is not None and self._known[0] == expired:
                self._known = None

    def _is_v3(self) -> bool:
        settings = self._place.settings
        path = urlsplit(settings["auth_url"]).path.rstrip("/")
        named = settings.get("project_id") or settings.get("domain_name")
        return bool(named) or path.endswith("/v3")

    def _v1(self) -> tuple[str, str]:
        settings = self._place.settings
        given = {"X-Auth-User": settings["user_name"], "X-Auth-Key": settings["password"]}
        answer = self._http.request("GET", settings["auth_url"], given)
        _check(answer)
        token, url = (answer.headers.get(name, "") for name in ("x-auth-token", "x-storage-url"))
        if not token or not url:
            raise no_service(answer, "its answer has no token of Swift")
        return token, self._rewritten(url.rstrip("/"))

    def _v3(self) -> tuple[str, str]:
        settings = self._place.settings
        url = settings["auth_url"].rstrip("/")
        url = url if url.endswith("/v3") else f"{url}/v3"
        domain = {"name": settings.get("domain_name") or "Default"}
        user = {"name": settings["user_name"], "password": settings["password"], "domain": domain}
        identity = {"methods": ["password"], "password": {"user": user}}
        scope = {"project": {"id": settings.get("project_id", "")}}
        wanted: dict[str, Any] = {"auth": {"identity": identity}}
        wanted["auth"] |= {"scope": scope} if settings.get("project_id") else {}
        answer = self._http.request("POST", f"{url}/auth/tokens",
                                    {"Content-Type": "application/json"},
                                    json.dumps(wanted).encode())  # fmt: skip
        _check(answer)
        token = from_json(answer)
        catalog = token.get("token", {}).get("catalog", []) if isinstance(token, dict) else []
        region = settings.get("region")
        found = [
            end["url"] for service in catalog if service.get("type") == "object-store"
            for end in service.get("endpoints", ())
            if end.get("interface") == "public"
            and (not region or region in (end.get("region"), end.get("region_id")))
        ]  # fmt: skip
        if not found:
            where = f" in the region {region!r}" if region else ""
            where += "" if settings.get("project_id") else "; `project_id` says whose"
            raise Refused(Refusal.NO_SUCH_SERVICE, f"its catalog has no object store{where}")
        return answer.headers.get("x-subject-token", ""), self._rewritten(found[0].rstrip("/"))

    def _rewritten(self, url: str) -> str:
        """Return the account's address as this site reaches it: `FROM TO` a line."""
        for line in self._place.settings.get("endpoints", "").splitlines():
            old, _, new = line.partition(" ")
            if url == old or url.startswith(f"{old.rstrip('/')}/"):
                return new.rstrip("/") + url[len(old.rstrip("/")) :]
        return url


def _check(answer: Answer) -> None:
    if answer.status in (401, 403):
        raise Refused(Refusal.CREDENTIALS, str(answer.status))
    if answer.status not in (200, 201, 204):
        raise Refused(Refusal.NO_SUCH_SERVICE, f"{answer.status} to the authentication")
