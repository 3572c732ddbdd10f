"""Tables on a terminal: what is in them, whatever its width."""

from __future__ import annotations

import io
import re

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
    assert (len(lines) == 3) == (width == 200)  # the names, and a line for each row


def test_where_there_is_none_each_cell_has_a_line_of_its_own(draw) -> None:
    """At 40 columns states and ids came in pieces: `COMPLE`, and `TED` below."""
    lines = draw(40)
    assert max(map(len, lines)) <= 40
    assert lines.count("state: TRAINING") == 1
    told = [word.rstrip(":") for line in lines for word in line.split()]
    assert {*told} >= {word.rstrip(":") for word in WORDS}


def test_a_path_is_broken_before_the_states_beside_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    output.table(["what", "state", "ended"], [["/scratch" * 12, "COMPLETED", "2 min ago"]])
    first = next(line for line in capsys.readouterr().out.splitlines() if "/scratch" in line)
    assert "COMPLETED" in first


def test_a_row_is_one_line_in_a_pipe(capsys) -> None:
    output.table(["training", "varied"], [["a-1", "command=first\nsecond"], ["b-2", "x"]])
    assert capsys.readouterr().out.splitlines()[1] == "a-1       command=first\\nsecond"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_bar_is_one_line(monkeypatch, columns: int) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("fetching") as update:
        update(0, 106_000_000)
        update(65_000_000, 106_000_000)
    assert "65.0/106.0" in stderr.getvalue()
    assert stderr.getvalue().count("\n") == 1  # behind the last picture


def test_columns_stand_below_each_other_whatever_is_in_them(capsys) -> None:
    names = ["plain", "数据", "🙂 x", "e\u0301tude", "\x1b[31mred", "zero\u200bwidth"]
    output.table(["metric", "newest"], [[name, "1"] for name in names])
    lines = capsys.readouterr().out.splitlines()
    assert len({width_of(line) - len(line.split()[-1]) for line in lines}) == 1
    assert "\x1b" not in "".join(lines)


def test_the_name_of_a_field_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    output.fields({"a\nb": "1", "\x1b[2Jc": "2", "日本": "3", "": ""})
    assert capsys.readouterr().out == "a\\nb      1\n\\x1b[2Jc  2\n日本      3\n"


def test_what_is_told_beside_each_other_is_broken_at_the_dots_and_then_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    output.items("12 batches a second · used 23.9MiB of memory a learner at the very most")
    assert capsys.readouterr().out.splitlines() == [
        "12 batches a second", "· used 23.9MiB of memory a learner at", "the very most",
    ]  # fmt: skip
