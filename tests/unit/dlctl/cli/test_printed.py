"""What is printed: tables on a terminal of any width, and names from elsewhere."""

import errno
import io
import json
import re
import sys
from pathlib import Path

import pytest

from dlctl.cli import output
from dlctl.cli.logs import LogLines
from dlctl.contract.ground.safe_text import cells_for, masked, printable, printable_lines
from dlctl.errors import DlctlError
from dlctl.logs.reader import LogPiece
from dlctl.request.scaffold import scaffold
from dlctl.sites.files import save_site
from dlctl.terminal.text import Line, width_of

SITE = (
    "transport: {kind: local}\nroot: /r\nscheduler: {kind: local}\nlauncher: {kind: mpirun}\n"
    "environment: {python: auto}\n"
)
COLUMNS = ["learner", "host", "state", "step", "metrics"]
ROWS = [
    ["0", "n1", "TRAINING", "905", "loss=0.0021 validation_loss=0.3766 validation_accuracy=0.9917"],
    ["1", "n2", "DEPLOYING: was killed by signal 9; restarting", "-", "-"],
]
WORDS = {word for row in [COLUMNS, *ROWS] for cell in row for word in cell.split()}


@pytest.fixture
def draw(monkeypatch, capsys):
    def draw(width):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        output.table(COLUMNS, ROWS)
        return re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return draw


@pytest.mark.parametrize("width", [70, 80, 100, 200])
def test_no_word_is_broken_while_there_is_room_for_the_longest_ones(draw, width):
    lines = draw(width)
    assert max(map(len, lines)) <= width
    assert {word for line in lines for word in line.split()} >= WORDS
    assert (len(lines) == 3) == (width == 200)  # the names, and a line for each row


def test_where_there_is_none_each_cell_has_a_line_of_its_own(draw):
    """At 40 columns states and ids came in pieces: `COMPLE`, and `TED` below."""
    lines = draw(40)
    assert max(map(len, lines)) <= 40
    assert lines.count("state: TRAINING") == 1
    told = [word.rstrip(":") for line in lines for word in line.split()]
    assert {*told} >= {word.rstrip(":") for word in WORDS}


def test_a_path_is_broken_before_the_states_beside_it(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    output.table(["what", "state", "ended"], [["/scratch" * 12, "COMPLETED", "2 min ago"]])
    first = next(line for line in capsys.readouterr().out.splitlines() if "/scratch" in line)
    assert "COMPLETED" in first


def test_no_line_ends_between_a_number_and_its_unit(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    output.table(["busy", "what"], [["0.0 % of 2 h", "so much that it needs a second line"]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2 and lines[1].startswith("0.0 %")
    assert any("2 h" in line for line in lines)
    assert "\xa0" not in "".join(lines)


def test_a_row_is_one_line_in_a_pipe(capsys):
    output.table(["training", "varied"], [["a-1", "command=first\nsecond"], ["b-2", "x"]])
    assert capsys.readouterr().out.splitlines()[1] == "a-1       command=first\\nsecond"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_bar_is_one_line(monkeypatch, columns):
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("fetching") as update:
        update(0, 106_000_000)
        update(65_000_000, 106_000_000)
    assert "65.0/106.0" in stderr.getvalue()
    assert "0/?" not in stderr.getvalue(), "the sizes were not known yet"
    assert stderr.getvalue().count("\n") == 1  # behind the last picture


def test_columns_stand_below_each_other_whatever_is_in_them(capsys):
    names = ["plain", "数据", "🙂 x", "e\u0301tude", "\x1b[31mred", "zero\u200bwidth"]
    output.table(["metric", "newest"], [[name, "1"] for name in names])
    lines = capsys.readouterr().out.splitlines()
    assert len({width_of(line) - len(line.split()[-1]) for line in lines}) == 1
    assert "\x1b" not in "".join(lines)


def test_the_name_of_a_field_moves_no_cursor(capsys):
    output.fields({"a\nb": "1", "\x1b[2Jc": "2", "日本": "3", "": ""})
    assert capsys.readouterr().out == "a\\nb      1\n\\x1b[2Jc  2\n日本      3\n"


def test_a_question_of_a_server_moves_no_cursor(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("123456\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert output.ask("Two\nfactors \x1b[2J\x1b]0;x\x07: ", False) == "123456"
    asked = capsys.readouterr().err
    assert asked.startswith("Two\nfactors ") and "\x1b" not in asked


def test_what_is_told_beside_each_other_is_broken_at_the_dots_and_then_between_words(
    monkeypatch, capsys
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    output.items("12 batches a second · used 23.9MiB of memory a learner at the very most")
    assert capsys.readouterr().out.splitlines() == [
        "12 batches a second", "· used 23.9MiB of memory a learner at", "the very most",
    ]  # fmt: skip


# No name from elsewhere forges a line, moves the cursor or turns the direction of writing -------

EVIL = "a\nCOMPLETED\r\x1b[2Kb\x9b1m\u202ec\u2066\x7f\udcff"
SAFE = "a\\nCOMPLETED\\r\\x1b[2Kb\\x9b1m\\u202ec\\u2066\\x7f\\xff"


def test_a_name_becomes_one_line_of_escapes():
    assert printable(EVIL) == SAFE
    assert printable("ä b/ü.txt") == "ä b/ü.txt"
    assert printable_lines("a\tb\n\x1bc") == "a\tb\n\\x1bc"


@pytest.mark.parametrize(("show", "is_whole"), [
    *((show, True) for show in (
        output.line, output.note, output.warn, output.advice, output.hint, output.sentence,
        output.items, lambda name: output.table(["name"], [[name]]),
        lambda name: output.lines([name]),
        lambda name: LogLines().print(LogPiece(1, name, b"epoch 1\n")),
    )),
    (lambda name: output.fields({"name": name}), False),
    (lambda name: output.error(f"{name} is refused", "look"), False),
    (lambda name: print(Line().add(name).render(colours=False)), False),
])  # fmt: skip
def test_whatever_prints_a_name_prints_it_safely(capsys, show, is_whole):
    show(EVIL)
    printed = "".join(capsys.readouterr())
    assert SAFE in printed or not is_whole
    assert not any(line.startswith("COMPLETED") for line in printed.splitlines())
    assert printed.replace("\n", "").isprintable()


def test_a_terminal_gets_no_orders_from_a_file_or_a_row_and_a_program_gets_what_is_there(
    capsys, monkeypatch
):
    """`render`, `sites show`, `show --script`, `metrics --csv` and `search export`."""
    row, text = [EVIL, 1.5, None], "a\tb\n\x1b[2Kc\u202e\n"
    assert cells_for(sys.stdout, row) == row
    output.document(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cells_for(sys.stdout, row) == [SAFE, 1.5, None]
    output.document(text)
    assert capsys.readouterr().out == "a\tb\n\\x1b[2Kc\\u202e\n"


def test_json_for_a_terminal_has_escapes_and_the_same_value(capsys):
    output.report([EVIL, "ä"], True, print)
    output.json_line({"name": EVIL}, {"line": EVIL})
    printed = capsys.readouterr().out
    *whole, second, third = printed.splitlines()
    assert json.loads("\n".join(whole)) == [EVIL, "ä"] and "ä" in printed
    assert (json.loads(second), json.loads(third)["line"]) == ({"name": EVIL}, EVIL)
    assert printed.replace("\n", "").isprintable()


@pytest.mark.parametrize(("secrets", "text"), [
    (["d"], "dlctl: token abcdefgh of -----KEY-----"),  # would stand for each d
    (["abcd", "abcdefgh"], "dlctl: token *** of -----KEY-----"),
    (["x\n-----KEY-----\n"], "dlctl: token abcdefgh of ***"),
    (["", "none"], "dlctl: token abcdefgh of -----KEY-----"),
])  # fmt: skip
def test_secrets_are_masked_whole_and_short_ones_not_at_all(secrets, text):
    assert masked("dlctl: token abcdefgh of -----KEY-----", secrets) == text


@pytest.mark.parametrize("write", [
    lambda folder: scaffold(folder / "new"),
    lambda folder: save_site("mine", SITE),
])  # fmt: skip
def test_what_can_not_be_written_has_a_next_step(tmp_path, monkeypatch, write):
    """`Read-only file system`, and nothing more."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def fail(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(DlctlError, match="can't be written: Read-only file system") as caught:
        write(tmp_path)
    assert caught.value.hint
