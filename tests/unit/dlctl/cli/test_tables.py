"""Tables on a terminal: what is in them, whatever its width."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from dlctl.cli import output
from dlctl.terminal.text import width_of

COLUMNS = ["learner", "host", "state", "step", "metrics"]
ROWS = [
    ["0", "n1", "TRAINING", "905", "loss=0.0021 validation_loss=0.3766 validation_accuracy=0.9917"],
    ["1", "n2", "DEPLOYING: was killed by signal 9; restarting", "-", "-"],
]
WORDS = {word for row in [COLUMNS, *ROWS] for cell in row for word in cell.split()}


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def draw(width: int) -> list[str]:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        output.table(COLUMNS, ROWS)
        return re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return draw


@pytest.mark.parametrize("width", [70, 80, 100, 200])
def test_no_word_is_broken_while_there_is_room_for_the_longest_ones(draw, width: int) -> None:
    lines = draw(width)
    assert max(map(len, lines)) <= width
    assert {word for line in lines for word in line.split()} >= WORDS
    assert (len(lines) == 6) == (width == 200)  # a line for each row, the names, three around them


def test_where_there_is_none_words_are_broken_and_nothing_is_lost(draw) -> None:
    lines = draw(40)
    assert max(map(len, lines)) <= 40
    told = Counter("".join(lines))
    said = Counter("".join("".join(row) for row in [COLUMNS, *ROWS]))
    assert all(told[letter] == said[letter] for letter in said if letter != " ")


def test_columns_stand_below_each_other_whatever_is_in_them(capsys) -> None:
    names = ["plain", "数据", "🙂 x", "e\u0301tude", "\x1b[31mred", "zero\u200bwidth"]
    output.table(["metric", "newest"], [[name, "1"] for name in names])
    lines = capsys.readouterr().out.splitlines()
    assert len({width_of(line) - len(line.split()[-1]) for line in lines}) == 1
    assert "\x1b" not in "".join(lines)


def test_the_name_of_a_field_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    output.fields({"a\nb": "1", "\x1b[2Jc": "2", "日本": "3", "": ""})
    assert capsys.readouterr().out == "a\\nb      1\n\\x1b[2Jc  2\n日本      3\n"
