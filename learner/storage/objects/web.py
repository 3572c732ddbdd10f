"""Files of a web server, to read: one file, or those that a folder's index page links to."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from dlctl.contract.stores import ListedObject
from learner.storage.objects.base import Digests, Moved, Place, Refusal, Refused, Sink
from learner.storage.objects.http_client import Answer, HttpClient, is_page

_REDIRECTS = 5
_OF_PAGES = ("", ".html", ".htm", ".xhtml")
"""Endings of files that may be web pages."""


class Web:
    """The files of a web server below `connection.url`; see `ObjectStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._http = HttpClient()
        self._base = place.settings["url"].rstrip("/") + "/"
        user, password = (place.settings.get(name) for name in ("user_name", "password"))
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {pair}"} if user and password else {}

    def list(self) -> Iterator[ListedObject]:
        """Yield the file `container`, or all files in that folder and below."""
        name = "/".join(part for part in (self._place.container, self._place.prefix) if part)
        if not name.endswith("/"):
            found = self.stat(name)
            if found is not None:
                yield found
                return
        for key in self._listed(name.rstrip("/") + "/"):
            if (item := self.stat(key)) is not None:
                yield item

    def _listed(self, folder: str) -> Iterator[str]:
        url = self._url(folder)
        answer, _ = self._ask("GET", url)
        if answer.status == 404:
            raise Refused(Refusal.NO_CONTAINER)
        if "html" not in answer.headers.get("content-type", ""):
            raise Refused(Refusal.NO_SUCH_SERVICE, f"{folder!r} has no index page")
        links = _Links()
        links.feed(answer.body.decode(errors="replace"))
        for link in dict.fromkeys(links.found):
            target = urljoin(url, urldefrag(link).url)
            if target == url or not target.startswith(url) or urlsplit(target).query:
                continue
            key = unquote(target[len(self._base) :])
            if key.endswith("/"):
                yield from self._listed(key)
            else:
                yield key

    def read(self, item: ListedObject, start: int, into: Sink) -> None:
        """Fill a sink with a range of a file, even if the server can only send whole files."""
        first, end = start + into.done_bytes, start + len(into.room)
        wanted = {"Range": f"bytes={first}-{end - 1}"}
        answer, _ = self._ask("GET", self._url(item.key), wanted, first, into)
        if answer.status == 404:
            raise Refused(Refusal.NO_OBJECT, key=item.key)
        if answer.status == 416 or (answer.status in (200, 206) and _etag(answer) != item.etag):
            raise Refused(Refusal.CHANGED, key=item.key)
        if answer.status not in (200, 206):
            raise Refused(Refusal.NO_SUCH_SERVICE, f"{answer.status} to GET", item.key)

    def write(self, key: str, source: Path, moved: Moved) -> Digests:  # noqa: ARG002
        """Refuse: a web server takes no results."""
        raise Refused(Refusal.FORBIDDEN, "web servers are only read", key)

    def stat(self, key: str) -> ListedObject | None:
        """Return a file without its content; None for a folder, too."""
        answer, url = self._ask("HEAD", self._url(key))
        if answer.status == 404 or urlsplit(url).path.endswith("/"):
            return None
        size = answer.headers.get("content-length", "")
        if answer.status != 200 or not size.isdecimal():
            raise Refused(Refusal.NO_SUCH_SERVICE, f"{answer.status} to HEAD, size {size!r}", key)
        if is_page(answer) and PurePosixPath(key).suffix.lower() not in _OF_PAGES:
            raise Refused(Refusal.WEB_PAGE, f"for {key}", key)
        return ListedObject(key, int(size), _etag(answer))

    def _url(self, key: str) -> str:
        return self._base + quote(key)

    def _ask(
        self, method: str, url: str, headers: dict[str, str] | None = None,
        start: int = 0, into: Sink | None = None,
    ) -> tuple[Answer, str]:  # fmt: skip
        """Return an answer, and the address that gave it in the end."""
        given = {**self._headers, **(headers or {})}
        for _ in range(_REDIRECTS):
            answer = self._http.request(method, url, given, start=start, into=into)
            if answer.status not in (301, 302, 303, 307, 308):
                break
            target = urljoin(url, answer.headers.get("location", ""))
            if urlsplit(target).netloc != urlsplit(url).netloc:
                given.pop("Authorization", None)  # another server must not see the credential
            url = target
        if answer.status in (401, 403):
            raise Refused(Refusal.CREDENTIALS, str(answer.status))
        return answer, url


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _etag(answer: Answer) -> str:
    """Return what changes with a file's content, as far as the server tells."""
    tag = answer.headers.get("etag") or answer.headers.get("last-modified", "")
    return tag.removeprefix("W/").strip('"')
