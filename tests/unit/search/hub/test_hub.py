"""The hub beside its processes."""

from __future__ import annotations

import errno

from dlctl.contract.search import Spec, Task
from search.hub.__main__ import Hub


def test_a_full_disk_ends_no_search(tmp_path, monkeypatch):
    hub = Hub(tmp_path, Spec("s", [], Task("python"), "random"))
    hub._tell(now=True)
    told = tmp_path / "search/status.json"
    before = told.read_text()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dlctl.contract.write_whole", full)
    hub._tell(now=True)
    assert told.read_text() == before
