"""TensorBoard's event files: scalars, histograms, files that are cut, broken or huge."""

import json
import math

import pytest
from event_files import beginning, event, histogram, record, scalar, tensor
from hypothesis import given
from hypothesis import strategies as st
from repository import REPOSITORY

from dlctl.contract.ground.follow import CHUNK_BYTES
from dlctl.contract.ground.tfrecord import BrokenFile
from learner.collect.parsers.tensorboard import EventParser
from learner.collect.parsing import EventFeed

RECORDED = sorted((REPOSITORY / "tests/recorded/tensorboard").glob("*.tfevents*"))


def feed_of(path, said=None, state=None):
    said = [] if said is None else said
    return EventFeed(path, EventParser("train"), state or {}, said.append)


def everything(feed):
    found = []
    while (lines := feed.take(False)) is not None:
        found += lines
    return found


def test_values_of_a_step_make_one_line(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(
        beginning()
        + event(0, scalar("loss", 0.5), wall_time=1.0)
        + event(0, scalar("accuracy", 0.25), wall_time=2.0)
        + event(1, scalar("loss", math.nan))
        + event(1, scalar("loss", 0.125), wall_time=4.0)
        + event(-3, scalar("odd", 1.0))
    )
    found = everything(feed_of(path))
    assert [(line.step, line.values) for line in found] == [
        (0, {"loss": 0.5, "accuracy": 0.25}),
        (1, {"loss": None}),
        (1, {"loss": 0.125}),
        (-1, {"odd": 1.0}),
    ]
    assert (found[0].time, found[0].group) == (2.0, "train")


def test_histograms_become_summaries():
    old = event(4, histogram("weights", [1.0, 2.0, 3.0]))
    new = event(4, tensor("bias", [0, 2, 3, 2, 4, 1, 4, 6, 0], (3, 3), "histograms"))
    lines, used = EventParser("").feed(old + new)
    assert used == len(old + new)
    (line,) = lines
    assert line.values == pytest.approx({
        "weights/min": 1, "weights/max": 3, "weights/mean": 2, "weights/count": 3,
        "weights/std": math.sqrt(2 / 3),
        "bias/min": 0, "bias/max": 4, "bias/mean": 1.5, "bias/count": 4,
        "bias/std": math.sqrt(0.75),
    })  # fmt: skip


def test_the_kind_of_a_tag_is_known_to_the_next_collector(tmp_path):
    """Only the first value of a tag names its kind."""
    rows = [0.0, 2.0, 3.0]
    path, said = tmp_path / "events.out.tfevents.1", []
    path.write_bytes(beginning() + event(1, tensor("w", rows, (1, 3), "histograms")))
    first = feed_of(path, said)
    assert everything(first)
    with path.open("ab") as file:
        file.write(event(2, tensor("w", rows, (1, 3), "")))
    (line,) = everything(feed_of(path, said, json.loads(json.dumps(first.state()))))
    assert (line.step, line.values["w/mean"]) == (2, 1.0)


def test_tensors_count_if_they_are_single_numbers():
    data = event(
        1, tensor("loss", [0.5]), tensor("list", [1.0, 2.0], (2,)),
        tensor("word", [1.0], (1,), plugin="text"), tensor("time", [3.0]),
    )  # fmt: skip
    (line,) = EventParser("").feed(data)[0]
    assert line.values == {"loss": 0.5, "time_": 3.0}


def test_a_file_that_is_cut_is_read_on_later(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    whole = beginning() + b"".join(event(i, scalar("x", float(i))) for i in range(3))
    feed, found = feed_of(path), []
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        found += everything(feed)
        if end == len(whole) // 2:  # as another process would
            feed = feed_of(path, state=feed.state())
    assert [(line.step, line.values["x"]) for line in found] == [(0, 0), (1, 1), (2, 2)]


def test_zeros_may_still_become_data(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    said = []
    good = event(1, scalar("x", 1.0))
    path.write_bytes(good + bytes(40))
    feed = feed_of(path, said)
    assert len(everything(feed)) == 1
    path.write_bytes(good + event(2, scalar("x", 2.0)))
    assert [line.step for line in everything(feed)] == [2]
    assert said == []


def test_what_is_no_record_ends_the_file_and_is_said_once(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    said = []
    path.write_bytes(event(1, scalar("x", 1.0)) + b"no record at all" * 9)
    feed = feed_of(path, said)
    assert len(everything(feed)) == 1
    assert everything(feed) == []
    assert len(said) == 1 and "no event file from byte" in said[0]


def test_a_broken_event_costs_no_other():
    data = record(b"\xff\xff\xff") + event(1, scalar("x", 1.0))
    lines, used = EventParser("").feed(data)
    assert used == len(data) and [line.step for line in lines] == [1]


def test_a_huge_record_is_left_out_once_it_is_whole(tmp_path):
    path = tmp_path / "events.out.tfevents.1"
    huge = event(0, scalar("x" * (2 * CHUNK_BYTES), 1.0))
    feed = feed_of(path)
    path.write_bytes(huge[:-9])
    assert everything(feed) == []
    path.write_bytes(huge + event(5, scalar("x", 1.0)))
    assert [line.step for line in everything(feed)] == [5]


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_survived(data, framed):
    try:
        EventParser("").feed(record(data) if framed else data)
    except BrokenFile:
        assert not framed


@given(st.integers(0, 400), st.integers(0, 255))
def test_an_event_with_a_wrong_byte_is_survived(at, byte):
    data = bytearray(event(1, tensor("a", [0, 2, 3], (1, 3), "histograms"), scalar("x", 2.0)))
    data[at % len(data)] = byte
    try:
        EventParser("").feed(bytes(data))
    except BrokenFile:
        assert at % len(data) < 12


def test_files_of_the_real_writers_were_recorded():
    assert RECORDED


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_file_of_a_real_writer(path):
    said = []
    found = everything(feed_of(path, said))
    steps = [line.step for line in found]
    assert sorted(set(steps)) == list(range(5)) and not said
    for line in found:
        assert line.time > 1.7e9
    values = {step: {} for step in steps}
    for line in found:
        values[line.step] |= line.values
    for step in range(5):
        assert values[step]["loss"] == pytest.approx(1 / (step + 1))
        assert values[step]["weights/count"] == 100
        assert values[step]["weights/min"] == pytest.approx(step, abs=1e-6)
        assert values[step]["weights/max"] == pytest.approx(step + 99, abs=1e-6)
        assert values[step]["weights/mean"] == pytest.approx(step + 49.5, rel=0.05)
