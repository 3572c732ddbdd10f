"""What attempts have used is kept on this machine, the newest, and read back without harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_past import past

from dlctl.record import RecordStore, used


def test_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(used, "_MOST", 3)
    store = RecordStore(tmp_path / "record.db")
    assert used.known(store) == []
    for number in range(5):
        used.keep(store, [past(number)])
    used.keep(store, [past(3, state="FAILED")])
    known = [(each.training_id, each.state) for each in used.known(store)]
    assert known == [("digits-2", "COMPLETED"), ("digits-3", "FAILED"), ("digits-4", "COMPLETED")]


def test_what_nobody_understands_is_left_out(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "record.db")
    used.keep(store, [past(1)])
    store.change(lambda connection: connection.execute(
        "INSERT INTO used VALUES ('t-2.1', '', '', 'x'), ('t-3.1', '', '', '{}')"))  # fmt: skip
    assert [each.training_id for each in used.known(store)] == ["digits-1"]
    store.path.write_bytes(b"no database")
    assert used.known(store) == []
