"""The hub beside its processes."""

from __future__ import annotations

import errno

from made_search import events_of, lines_of

from dlctl.contract import search as names
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


def test_a_second_hub_tells_only_the_trials_that_the_first_has_not_told(
    tmp_path, monkeypatch, capsys
):
    spec = Spec("s", [], Task("python"), "random", metric="loss")
    folder = tmp_path / names.FOLDER
    folder.mkdir()
    events = [*events_of(6, 6, failed=0.0)]
    for attempt, ended in ((1, 4), (2, 6)):
        monkeypatch.setenv("RESULT_DIR", str(tmp_path / f"attempts/{attempt}/results"))
        monkeypatch.setenv("DLCTL_ATTEMPT", str(attempt))
        known = [each for each in events if each["event"] == "ask" or each["number"] < ended]
        (tmp_path / names.TRIALS).write_bytes(lines_of(known))
        hub = Hub(tmp_path, spec)
        hub._tell(now=True)
        said = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in said] == [
            f"step={step}" for step in ([1, 2, 3, 4] if attempt == 1 else [5, 6])
        ]
