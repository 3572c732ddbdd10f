"""FfDL's file of records, and the times that records hold."""

import datetime
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.contract.metrics import parse_line
from learner.collect.parsers.emetrics import EmetricsParser
from learner.collect.parsers.record import parse_time

RECORD = {
    "meta": {"training_id": "t-1", "time": 1513200611328, "rindex": 1, "subid": "7"},
    "grouplabel": "test",
    "etimes": {"iteration": {"type": 2, "value": "1"}, "epoch": {"type": "INT", "value": "2"}},
    "values": {
        "accuracy": {"type": 3, "value": "0.6"},
        "loss": {"type": "FLOAT", "value": "NaN"},
        "whole": {"type": "INT", "value": "4.0"},
        "note": {"value": "a <b>"},
        "shape": {"type": 1, "value": "[1, 2]"},
        "time": {"type": 3, "value": "5"},
        "wrong": {"type": 3, "value": "many"},
        "bare": 0.5,
    },
}


def parse(*records):
    return EmetricsParser(print).feed("".join(f"{json.dumps(record)}\n" for record in records))


def test_the_record_of_ffdl():
    (line,) = parse(RECORD)
    assert (line.step, line.epoch, line.time, line.group) == (1, 2, 1513200611.328, "test")
    assert line.values == {"accuracy": 0.6, "loss": None, "whole": 4, "time_": 5.0, "bare": 0.5}
    assert isinstance(line.values["whole"], int)
    assert line.texts == {"note": "a <b>", "shape": "[1, 2]", "subid": "7"}


def test_what_is_no_record_is_left_out_and_said_once():
    said = []
    text = '\nnonsense\n{"a": \n[1]\n{"values": 5}\n{}\n{"values": {"x": {"type": 9}}}\n'
    assert EmetricsParser(said.append).feed(text) == []
    assert said == [
        "'nonsense' in evaluation-metrics.txt is no JSON object: such lines are left out."
    ]
    deep = "[" * 100_000 + "\n" + '{"a":' * 100_000 + "\n"
    assert EmetricsParser(said.append).feed(deep) == []
    assert len(said) == 2 and len(said[1]) < 150


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "value", "iteration", "epoch", "time", "subid", "x", "\ud800"]),
        inner, max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(
    ("meta", "grouplabel", "etimes", "values"), JSON)))  # fmt: skip
def test_any_record_is_survived_and_can_be_written(record):
    for line in parse(record):
        read = parse_line(line.encode())
        assert read is not None and read.values.keys() == line.values.keys()


def test_without_a_time_a_record_has_the_present():
    before = time.time()
    (line,) = parse({"values": {"x": {"type": 3, "value": 1}}, "meta": None})
    assert before - 1 < line.time <= time.time() + 1
    assert line.step == -1


def test_a_sub_folder_names_the_run_unless_the_record_does():
    plain = {"values": {"x": 1}}
    text = f"{json.dumps(plain)}\n{json.dumps({**plain, 'meta': {'subid': 'b'}})}\n"
    assert [line.texts["subid"] for line in EmetricsParser(print, "a").feed(text)] == ["a", "b"]


NOW = datetime.datetime(2026, 1, 5, 12).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1700000000, 1700000000.0),
        ("1700000000123", 1700000000.123),
        ("2026-01-02T03:04:05.5Z", 1767323045.5),
        ("2026-01-02T03:04:05.123456789+00:00", 1767323045.123456),
        ("2026-01-02T03:04:05+01:00", 1767319445.0),
        ("I0105 11:00:00.250000", datetime.datetime(2026, 1, 5, 11).timestamp() + 0.25),
        ("W1231 23:59:59.000000", datetime.datetime(2025, 12, 31, 23, 59, 59).timestamp()),
        ("I20250102 03:04:05.000000", datetime.datetime(2025, 1, 2, 3, 4, 5).timestamp()),
        ("I0229 03:04:05.000000", None),
        ("nan", None),
        ("1e300", None),
        ("-5", None),
        ("yesterday", None),
        (True, None),
    ],
)
def test_times_as_logs_write_them(text, expected):
    assert parse_time(text, NOW) == (expected if expected is None else pytest.approx(expected))
