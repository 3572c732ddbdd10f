"""What is shown of a line is what a terminal would show, and nothing in it drives one."""

import re

import pytest

from dlctl.contract.programs.tracebacks import Frame
from dlctl.logs.reader import LogPiece
from dlctl.logs.shown import ShownLog, shortened, shown

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
    assert shown("\x1b[8mhidden\x1b[5;999999999999mblinks", colours=True) == "hiddenblinks"
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
    assert log.lines(b"one\n 10%\r 20%") == ["one"]
    assert log.lines(b"\r 30%") == []
    assert (log.rest(), log.rest()) == ([" 30%"], []), "a bar that never ends"


def test_lines_end_at_newlines_only():
    log = ShownLog(colours=False)
    assert log.lines("a\x0bb\x0cc\x1cd\u2028e\x85f\n\n".encode()) == [
        "a\\x0bb\\x0cc\\x1cd\\u2028e\\x85f", "",
    ]  # fmt: skip


# Tracebacks of several learners ------------------------------------------------------------------

CODE = "/home/me/dlctl/jobs/digits-3k9f/code"


def said(rank, code=CODE):
    lines = [
        "Traceback (most recent call last):",
        '  File "/x/lib/python3.11/site-packages/torch/nn/module.py", line 1, in call',
        "    return forward(*args)",
        f'  File "{code}/train.py", line 14, in forward',
        "    return self.head(x)",
        f"RuntimeError: {rank} is wrong",
    ]
    return "".join(f"[rank {rank} on n1] {line}\n" for line in lines).encode()


def whole(*pieces):
    return [(piece.source, line) for piece in shortened(pieces)
            for line in piece.content.decode(errors="surrogateescape").splitlines()]  # fmt: skip


FIRST = [
    ("learner-0", "Traceback (most recent call last):"),
    ("learner-0", '  File "train.py", line 14, in forward'),
    ("learner-0", "    return self.head(x)"),
    ("learner-0", "RuntimeError: 0 is wrong"),
]


def test_a_traceback_that_learners_share_is_shown_once():
    both = [LogPiece(1, f"learner-{rank}", said(rank)) for rank in (0, 1)]
    other = LogPiece(1, "learner-2", said(2, CODE + "/other"))
    again = LogPiece(2, "learner-1", said(1))
    lines = whole(*both, other, again)
    assert lines[:4] == FIRST
    assert lines[4] == ("learner-1", "RuntimeError, the same as in learner-0")
    assert lines[5:][0] == ("learner-2", "Traceback (most recent call last):")
    assert [line for line in lines if line[1] == FIRST[0][1]] == [
        FIRST[0], ("learner-2", FIRST[0][1]), ("learner-1", FIRST[0][1])
    ]  # fmt: skip
    lines = whole(*(LogPiece(1, f"learner-{rank}", said(rank) * 2) for rank in (0, 1)))
    assert lines[8:] == [("learner-1", "RuntimeError, the same as in learner-0")]


def test_a_traceback_that_comes_in_parts_is_one():
    first, second = said(0).split(b"    return self", 1)
    begin, rest = first.rpartition(b"\n")[0] + b"\n", b"[rank 0 on n1]     return self" + second
    pieces = [LogPiece(1, "learner-0", b"loss 3\n" + begin), LogPiece(1, "learner-1", b"hi\n"),
              LogPiece(1, "learner-0", rest + b"the \xff end\n")]  # fmt: skip
    lines = whole(*pieces)
    assert lines[:2] == [("learner-0", "loss 3"), ("learner-1", "hi")]
    assert lines[2:] == [*FIRST, ("learner-0", "the \udcff end")]
    cut = said(0).rpartition(b"[rank")[0]
    assert whole(LogPiece(1, "learner-0", cut)) == FIRST[:3], "it never ends"
    pieces = [LogPiece(1, "learner-0", part) for part in (b"begin", b"end\n")]
    assert b"".join(piece.content for piece in shortened(pieces)) == b"begin\nend\n"


def test_the_cost_of_many_different_tracebacks_is_linear(monkeypatch):
    """2,000 of two learners took 30 s: each was compared with all before it."""
    looks, place = [], Frame.place.fget
    monkeypatch.setattr(Frame, "place", property(lambda frame: looks.append(1) or place(frame)))
    pieces = []
    for number in range(50):
        word = chr(ord("a") + number // 26) + chr(ord("a") + number % 26)
        text = f'Traceback (most recent call last):\n  File "{word}.py", line 1\nError: {word}\n'
        pieces.append(LogPiece(1, f"learner-{number % 2}", text.encode()))
    assert len(list(shortened(pieces))) == 50
    assert len(looks) <= 50
