"""What `dlctl logs` prints of the tracebacks of several learners."""

from dlctl.contract.programs.tracebacks import Frame
from dlctl.logs.reader import LogPiece
from dlctl.logs.shown import shortened

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


def shown(*pieces):
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
    lines = shown(*both, other, again)
    assert lines[:4] == FIRST
    assert lines[4] == ("learner-1", "RuntimeError, the same as in learner-0")
    assert lines[5:][0] == ("learner-2", "Traceback (most recent call last):")
    assert [line for line in lines if line[1] == FIRST[0][1]] == [
        FIRST[0], ("learner-2", FIRST[0][1]), ("learner-1", FIRST[0][1])
    ]  # fmt: skip


def test_two_tracebacks_of_one_failure_are_told_of_once():
    lines = shown(*(LogPiece(1, f"learner-{rank}", said(rank) * 2) for rank in (0, 1)))
    assert lines[8:] == [("learner-1", "RuntimeError, the same as in learner-0")]


def test_a_traceback_that_comes_in_parts_is_one():
    first, second = said(0).split(b"    return self", 1)
    begin, rest = first.rpartition(b"\n")[0] + b"\n", b"[rank 0 on n1]     return self" + second
    pieces = [LogPiece(1, "learner-0", b"loss 3\n" + begin), LogPiece(1, "learner-1", b"hi\n"),
              LogPiece(1, "learner-0", rest + b"the \xff end\n")]  # fmt: skip
    lines = shown(*pieces)
    assert lines[:2] == [("learner-0", "loss 3"), ("learner-1", "hi")]
    assert lines[2:] == [*FIRST, ("learner-0", "the \udcff end")]


def test_a_traceback_that_never_ends_is_shown_at_the_end():
    cut = said(0).rpartition(b"[rank")[0]
    assert shown(LogPiece(1, "learner-0", cut)) == FIRST[:3]


def test_a_part_of_a_long_line_is_not_lost():
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
