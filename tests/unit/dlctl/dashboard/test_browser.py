"""The browser is led to the page by a private file, which a snap can read only below its folder."""

import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from synthetic_feed import make_feed

from dlctl.dashboard import serve as browser

URL = "http://127.0.0.1:8000/#/?token=secret"


class Desktop:
    """A desktop whose default browser is what a test says."""

    def __init__(self, folder, monkeypatch):
        self.home, self.bin, self.snaps = folder / "home", folder / "bin", folder / "snap"
        for each in (self.home, self.bin, self.snaps / "bin"):
            each.mkdir(parents=True)
        self.files = []
        for name, value in (("HOME", self.home), ("PATH", f"{self.bin}:{self.snaps / 'bin'}:/bin"),
                            ("DISPLAY", ":0")):  # fmt: skip
            monkeypatch.setenv(name, str(value))
        monkeypatch.delenv("BROWSER", raising=False)
        monkeypatch.setattr(browser, "_SNAPS", self.snaps)
        monkeypatch.setattr("webbrowser.open", self.open)

    def program(self, path, text):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def default(self, desktop_file):
        self.program(
            self.bin / "xdg-settings",
            f'[ "$*" = "get default-web-browser" ] && echo {desktop_file}',
        )  # noqa: E501

    def open(self, url):
        page = Path(unquote(urlsplit(url).path))
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        assert f"url={URL}" in page.read_text() and "secret" not in url
        self.files.append(page)


@pytest.fixture
def desktop(tmp_path, monkeypatch):
    return Desktop(tmp_path, monkeypatch)


@pytest.mark.parametrize("named", ["firefox_firefox.desktop", "firefox.desktop"])
def test_a_snap_gets_the_file_below_its_own_folder(desktop, named):
    (desktop.snaps / "firefox").mkdir()
    desktop.program(desktop.snaps / "bin/firefox", "true")
    desktop.default(named)
    common = desktop.home / "snap/firefox/common"
    common.mkdir(parents=True)
    with browser.opened(URL) as problem:
        assert problem == ""
        assert [page.is_relative_to(common) for page in desktop.files] == [True]
    assert list(common.iterdir()) == []


def test_a_snap_without_a_folder_is_not_opened(desktop):
    (desktop.snaps / "firefox").mkdir()
    desktop.default("firefox_firefox.desktop")
    with browser.opened(URL) as problem:
        assert problem.endswith("can't read dlctl's files: open the address above")
    assert desktop.files == []


@pytest.mark.parametrize("named", ["firefox-esr.desktop", "my_browser.desktop", ""])
def test_another_browser_reads_the_folder_for_temporary_files(desktop, named):
    desktop.program(desktop.bin / "firefox-esr", "true")
    desktop.default(named)
    with browser.opened(URL) as problem:
        assert problem == "" and len(desktop.files) == 1
        assert not desktop.files[0].is_relative_to(desktop.home)
    assert not desktop.files[0].exists()


def test_without_a_display_nothing_is_opened(desktop, monkeypatch):
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with browser.opened(URL) as problem:
        assert problem == "" and desktop.files == []


def test_the_server_opens_its_page_by_that_file_because_others_see_its_command(monkeypatch):
    told, opened = [], []

    def look(way):
        page = Path(unquote(urlsplit(way).path))
        opened.append((way, page.read_text()))
        raise KeyboardInterrupt

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", look)
    with pytest.raises(KeyboardInterrupt):
        browser.serve(make_feed(), 0, "", open_browser=True, tell=told.append, warn=told.append)
    ((way, text),) = opened
    token = told[0].partition("token=")[2]
    assert token and token in text and token not in way
