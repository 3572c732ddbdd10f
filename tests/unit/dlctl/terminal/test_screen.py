"""What is sent to a terminal leaves nothing of an earlier picture on it."""

from __future__ import annotations

import pytest

from dlctl.terminal.screen import Screen
from dlctl.terminal.text import Line


def test_the_rest_of_a_row_is_erased_unless_its_last_column_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Screen, "size", (20, 5))
    screen = Screen(colours=False)
    screen._entered = True
    screen.show([Line().add("x" * 20), Line().add("ends in blanks".ljust(20)), Line().add("short")])
    sent = capsys.readouterr().out.split("\033[")
    assert [text.partition("H")[2] for text in sent if "H" in text] == [
        "x" * 20, "ends in blanks", "short",
    ]  # fmt: skip
    assert [text for text in sent if text == "K"] == ["K", "K"]
