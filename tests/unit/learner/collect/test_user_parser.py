"""A user's own parser: what it returns, and everything that it may do wrong."""

import math
import time

import pytest
from node_job import alive, wait_until
from repository import REPOSITORY

from learner.collect.parsers.user import UserParser


@pytest.fixture
def parser_of(tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    made = []

    def make(code, said=None, **options):
        file = tmp_path / "my_parser.py"
        file.write_text(code)
        made.append(UserParser(file, (said if said is not None else []).append, **options))
        return made[-1]

    yield make
    for parser in made:
        parser.finish()


def test_records_are_flat_dictionaries(parser_of, tmp_path):
    code = """
import helper
class Odd:
    def __float__(self): return 2.5
def parse(lines):
    print("this is no answer")
    for line in lines:
        name, value = line.split()
        yield {"step": int(value), "epoch": 2, "time": 1700000000, "group": "test",
               name: float(value), "odd": Odd(), "bad": float("nan"), "text": helper.TEXT}
"""
    (tmp_path / "helper.py").write_text("TEXT = 'found'\n")
    parser = parser_of(code, subid="run")
    one, other = parser.feed("loss 1\nloss 2\n")
    assert (one.step, one.epoch, one.time, one.group) == (1, 2, 1700000000.0, "test")
    assert one.values == {"loss": 1.0, "odd": 2.5, "bad": None}
    assert one.texts == {"text": "found", "subid": "run"}
    assert other.step == 2
    assert len(parser.feed("loss 3\n" * 2500)) == 2500


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def parse(lines): 1 / 0", "ZeroDivisionError"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "no function parse"),
        ("import os; os.close(0)", "no function parse"),  # it has answered before it was asked
        ("def parse(lines): return [5]", "TypeError"),
        ("def parse(lines): return 5", "TypeError"),
        ("import os\ndef parse(lines): os._exit(0)", "ended its process"),
        ("import sys\ndef parse(lines): sys.exit()", "SystemExit"),
        ("def parse(", "SyntaxError"),
        ("def parse(lines):\n while True: pass", "more than 0.5 s"),
        ("while True: pass", "more than 0.5 s"),
    ],
)
def test_a_parser_that_fails_is_said_once_and_not_used_any_more(parser_of, code, words):
    said = []
    parser = parser_of(code, said, limit_s=0.5 if "while" in code else 60.0)
    text = f"{'x' * 100}\n" * 5000
    assert parser.feed(text) == []
    assert parser.feed(text) == []
    assert len(said) == 1 and words in said[0] and "my_parser.py" in said[0], said


def test_records_before_an_error_are_kept(parser_of):
    said = []
    code = """
def parse(lines):
    for line in lines:
        yield {"step": 1, "loss": float(line)}
"""
    (line,) = parser_of(code, said).feed("0.5\nno number\n0.25\n")
    assert (line.values, len(said)) == ({"loss": 0.5}, 1)


def test_its_process_ends_with_the_file(parser_of):
    parser = parser_of("import os\ndef parse(lines): return [{'pid': os.getpid()}]")
    (line,) = parser.feed("x\n")
    pid = int(line.values["pid"])
    assert alive(pid)
    assert parser.finish() == []
    wait_until(lambda: not alive(pid))


def test_a_record_without_values_is_none(parser_of):
    said = []
    code = "def parse(lines): return [{}, {'step': 3}, {'step': -1, 'x': 1}, {'x': None}]"
    (line,) = parser_of(code, said).feed("x\n")
    assert (line.step, line.values, said) == (-1, {"x": 1}, [])
    assert not math.isnan(line.time) and line.time <= time.time() + 1
