"""No name from elsewhere can forge a line, move the cursor or turn the direction of writing."""

from __future__ import annotations

import json
import sys

import pytest

from dlctl.cli import output
from dlctl.cli.logs import LogLines
from dlctl.contract.ground.safe_text import cells_for, printable, printable_lines
from dlctl.logs.reader import LogPiece
from dlctl.terminal.text import Line

EVIL = "a\nCOMPLETED\r\x1b[2Kb\x9b1m\u202ec\u2066\x7f\udcff"
SAFE = "a\\nCOMPLETED\\r\\x1b[2Kb\\x9b1m\\u202ec\\u2066\\x7f\\xff"


def test_a_name_becomes_one_line_of_escapes() -> None:
    assert printable(EVIL) == SAFE
    assert printable("ä b/ü.txt") == "ä b/ü.txt"
    assert printable_lines("a\tb\n\x1bc") == "a\tb\n\\x1bc"


@pytest.mark.parametrize(
    "show",
    [
        output.line, output.note, output.warn, output.advice, output.hint, output.sentence,
        output.items, lambda name: output.table(["name"], [[name]]),
        lambda name: output.lines([name]),
    ],
)  # fmt: skip
def test_whatever_prints_a_name_prints_it_safely(capsys, show) -> None:
    show(EVIL)
    printed = "".join(capsys.readouterr())
    assert SAFE in printed
    assert not any(line.startswith("COMPLETED") for line in printed.splitlines())


def test_a_line_break_in_an_error_or_a_field_begins_no_line(capsys) -> None:
    output.error(f"{EVIL} is refused", "look")
    output.fields({"name": EVIL})
    printed = "".join(capsys.readouterr())
    assert not any(line.startswith("COMPLETED") for line in printed.splitlines())
    assert printed.replace("\n", "").isprintable()


def test_json_for_a_terminal_has_escapes_and_the_same_value(capsys) -> None:
    output.report([EVIL, "ä"], True, print)
    output.json_line({"name": EVIL}, {"line": EVIL})
    first, second, third = "", "", ""
    printed = capsys.readouterr().out
    *whole, second, third = printed.splitlines()
    first = "\n".join(whole)
    assert json.loads(first) == [EVIL, "ä"]
    assert "ä" in first
    assert json.loads(second) == {"name": EVIL}
    assert json.loads(third)["line"] == EVIL
    assert printed.replace("\n", "").isprintable()


def test_a_frame_shows_a_name_on_its_line() -> None:
    shown = Line().add(EVIL).render(colours=False)
    assert "COMPLETED" in shown and shown.isprintable()


def test_the_source_of_a_log_is_printed_safely(capsys) -> None:
    LogLines().print(LogPiece(1, EVIL, b"epoch 1\n"))
    assert capsys.readouterr().out == f"{SAFE} | epoch 1\n"


def test_a_terminal_gets_no_orders_from_a_file_or_a_row_and_a_program_gets_what_is_there(
    capsys, monkeypatch
) -> None:
    """`render`, `sites show`, `show --script`, `metrics --csv` and `search export`."""
    row, text = [EVIL, 1.5, None], "a\tb\n\x1b[2Kc\u202e\n"
    assert cells_for(sys.stdout, row) == row
    output.document(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cells_for(sys.stdout, row) == [SAFE, 1.5, None]
    output.document(text)
    assert capsys.readouterr().out == "a\tb\n\\x1b[2Kc\\u202e\n"
