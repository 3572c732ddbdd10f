"""What is shown of a line is what a terminal would show, and nothing in it drives one."""

import re

import pytest

from dlctl.logs.shown import ShownLog, shown

SAFE = re.compile(r"(?:\x1b\[[0-9;]+m|[^\x00-\x08\x0b-\x1f\x7f-\x9f])*")


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("epoch 1\tloss 0.5 é 訓練 🎉", "epoch 1\tloss 0.5 é 訓練 🎉"),
        ("a line of Windows\r", "a line of Windows"),
        (" 10%|#   |\r 50%|##  |\r100%|####|", "100%|####|"),
        ("a long first state\rshort", "shortg first state"),
        ("done     \rok", "okne"),
        ("a long first state\r\x1b[Kshort", "short"),
        ("a long first state\x1b[2K\rshort", "short"),
        ("1/9\b\b\b2/9\b\b\b3/9", "3/9"),
        ("\x1b[31merror\x1b[0m: no", "error: no"),
        ("\x1b[3A\x1b[10;20Hup\x1b[2J\x1b[?1049h", "up"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b]52;c;cm0gLXJmIH4=\x07", "\\x1b]52;c;cm0gLXJmIH4=\\x07"),
        ("\x1b]8;;http://evil\x1b\\docs\x1b]8;;\x1b\\", None),
        ("\x1bP+q544e\x1b\\", None),
        ("\x9b31mC1", "\\x9b31mC1"),
        ("if access\u202e\u2066 {", "if access\\u202e\\u2066 {"),
        ("hidden \U000e0041\U000e0042", "hidden \\U000e0041\\U000e0042"),
        ("\x1b[6n\x1b[c", ""),
        ("\x1bc\x1b#8", "\\x1bc\\x1b#8"),
        ("bell\x07 and nul\x00", "bell\\x07 and nul\\x00"),
    ],
)
def test_what_is_seen_of_a_line(line, seen):
    for colours in (False, True):
        told = shown(line, colours)
        assert SAFE.fullmatch(told), (colours, told)
        if seen is not None:
            assert re.sub(r"\x1b\[[0-9;]*m", "", told) == seen, f"{colours=}"


def test_colours_pass_to_a_terminal_and_end_with_the_line():
    line = "\x1b[1;31merror\x1b[0m: \x1b[38;5;208mwarm\x1b[38;2;1;2;3mrgb"
    assert shown(line, colours=True) == (
        "\x1b[1;31merror\x1b[0m: \x1b[38;5;208mwarm\x1b[0m\x1b[38;5;208;38;2;1;2;3mrgb\x1b[0m"
    )
    assert shown(line, colours=False) == "error: warmrgb"


def test_hidden_and_blinking_text_is_plain():
    assert shown("\x1b[8mhidden\x1b[5;999999999999mblinks", colours=True) == "hiddenblinks"


def test_a_bar_keeps_its_colours():
    assert shown("\x1b[32m 50%\r100%\x1b[0m done", colours=True) == "\x1b[32m100%\x1b[0m done"


def test_a_bar_of_a_megabyte_is_one_line_and_quick():
    bar = "".join(f"\r{i:6d}/100000 [#####{' ' * 30}]" for i in range(30_000))
    log = ShownLog(colours=False)
    half = len(bar) // 2
    assert log.lines(bar[:half].encode()) == []
    assert log.lines((bar[half:] + "\nnext\n").encode()) == [
        f" 29999/100000 [#####{' ' * 30}]", "next",
    ]  # fmt: skip
    assert log.rest() == []


def test_a_bar_that_never_ends_is_shown_at_the_end():
    log = ShownLog(colours=False)
    assert log.lines(b"one\n 10%\r 20%") == ["one"]
    assert log.lines(b"\r 30%") == []
    assert log.rest() == [" 30%"]
    assert log.rest() == []


def test_lines_end_at_newlines_only():
    log = ShownLog(colours=False)
    assert log.lines("a\x0bb\x0cc\x1cd\u2028e\x85f\n\n".encode()) == [
        "a\\x0bb\\x0cc\\x1cd\\u2028e\\x85f", "",
    ]  # fmt: skip
