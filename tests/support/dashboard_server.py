"""A dashboard that serves made trainings, for tests and pictures."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from synthetic_feed import SyntheticFeed

from dlctl.dashboard.serve import prepared


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running server and its feed."""

    feed: SyntheticFeed
    url: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    def page(self, path: str) -> str:
        """Return the URL of a page, with the token."""
        return f"http://{self.host}/#{path}{'&' if '?' in path else '?'}token={self.token}"

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> Answer:
        """Ask with the token; headers are written with `_` for `-`, an empty one is left out."""
        sent = {"x-dlctl-token": self.token, "host": self.host}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in sent.items():
                if value:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()


@contextmanager
def served(feed: SyntheticFeed) -> Iterator[Served]:
    """Serve a feed until the end of the `with` block; the port is open from the beginning."""
    with prepared(feed) as (url, server):
        thread = threading.Thread(target=server.run, name="dashboard")
        thread.start()
        try:
            yield Served(feed, url)
        finally:
            server.should_exit = True
            thread.join()
