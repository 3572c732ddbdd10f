"""Reading files that grow: halves of lines, long lines, files that begin anew."""

import os

import pytest

from dlctl.contract.ground.follow import CHUNK_BYTES, MOST_LINE_BYTES, LineFollower, Position


def follow(path, position=None):
    return LineFollower(path, position or Position())


def everything(follower, last=False):
    found = []
    while (text := follower.lines(last)) is not None:
        found.append(text)
    return "".join(found)


def test_half_a_line_waits_for_its_end(tmp_path):
    path = tmp_path / "log"
    follower = follow(path)
    assert follower.lines() is None
    path.write_bytes(b"one\ntw")
    assert everything(follower) == "one\n"
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert everything(follower) == "two\n"
    assert everything(follower, last=True) == "three\n"
    assert follower.lines(last=True) is None


def test_carriage_returns_end_lines_too(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a\r\nb\rc\r")
    follower = follow(path)
    assert everything(follower) == "a\nb\n"  # a newline may follow the last one
    with path.open("ab") as file:
        file.write(b"\nd\n")
    assert everything(follower) == "c\nd\n"


def test_a_position_lives_on_as_json(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\n" * 100)
    first = follow(path)
    assert everything(first) == "one\n" * 100
    with path.open("ab") as file:
        file.write(b"two\n")
    assert everything(follow(path, Position.of(first.position.plain()))) == "two\n"
    for nonsense in (None, [], {"offset": "x"}, {"offset": -5, "head": 0, "head_bytes": 0}):
        assert Position.of(nonsense).offset == 0


@pytest.mark.parametrize("content", [b"new\n", b"a new beginning that is longer than before\n"])
def test_a_file_that_begins_differently_is_read_from_its_start(tmp_path, content):
    path = tmp_path / "log"
    path.write_bytes(b"old line\nother\n")
    follower = follow(path)
    everything(follower)
    path.write_bytes(content)
    assert follower.lines() == content.decode()


def test_a_line_without_end_costs_little_memory_and_is_cut(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"before\n" + b"x" * (5 * CHUNK_BYTES))
    follower = follow(path)
    texts = []
    while (text := follower.lines()) is not None:
        texts.append(text)
    assert texts[0] == "before\n"
    assert max(map(len, texts)) <= MOST_LINE_BYTES + len("\n")
    assert len(texts) == 2
    with path.open("ab") as file:
        file.write(b"yyy\nafter\n")
    assert everything(follower) == "after\n"


def test_a_long_line_among_others_is_cut(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a\n" + b"x" * (MOST_LINE_BYTES + 9) + b"\nb\n")
    lines = everything(follow(path)).split("\n")
    assert [len(line) for line in lines] == [1, MOST_LINE_BYTES, 1, 0]


def test_bytes_that_are_no_text_are_replaced(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe x\n")
    assert everything(follow(path)) == "\ufffd\ufffd x\n"


def test_what_is_no_file_holds_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert follow(tmp_path / "pipe").lines() is None
    assert follow(tmp_path).lines() is None
