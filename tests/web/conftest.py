"""One browser and one server for all tests of the pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dashboard_server import Served, served
from synthetic_feed import make_feed

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
PATIENCE_MS = 90_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/web/" in item.path.as_posix():
            item.add_marker(pytest.mark.web)
            item.add_marker(pytest.mark.xdist_group("web"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium of the system; while it is open, this thread has a running event loop."""
    if not shutil.which(CHROMIUM):
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is missing: make web-deps")
        pytest.skip("chromium is missing: make web-deps")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def server() -> Iterator[Served]:
    with served(make_feed()) as running:
        yield running


class Visit:
    """A page that must not complain, and must not leave this machine."""

    def __init__(self, browser: Any, **settings: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, **settings}
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def check(self) -> None:
        assert self.complaints == []
        allowed = ("http://127.0.0.1:", "data:", "blob:", "file:///", "ws://127.0.0.1:")
        assert [url for url in self.requests if not url.startswith(allowed)] == []
        if not self.page.is_closed():
            assert self.page.evaluate("window.owned") is None


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """`visit(url, …)` → the page; at the end it is checked for complaints."""
    visits: list[Visit] = []

    def go(url: str, **settings: Any) -> Any:
        visits.append(Visit(browser, **settings))
        visits[-1].page.goto(url)
        return visits[-1].page

    yield go
    try:
        for each in visits:
            each.check()
    finally:
        for each in visits:
            each.context.close()
