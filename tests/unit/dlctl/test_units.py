import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.units import (
    UnitError,
    counted,
    format_bytes,
    format_duration,
    format_size,
    format_slurm_time,
    natural,
    parse_duration,
    parse_size,
)


def test_sizes():
    for text, size_bytes in {
        "8000MiB": 8000 * 2**20, "1Gb": 10**9, "16GB": 16 * 10**9, "8GiB": 8 * 2**30,
        "8 gib": 8 * 2**30, "512M": 512 * 2**20, "1.5Gi": 3 * 2**29, ".5k": 512, "100b": 100,
        "1TB": 10**12,
    }.items():  # fmt: skip
        assert parse_size(text) == size_bytes, text


@pytest.mark.parametrize(
    "text",
    ["", "8", "GiB", "8 parsecs", "-1GB", "0GB", "1e3GB", "8GiB8", "9" * 60 + "P", "1" * 5000],
)
def test_no_size(text):
    with pytest.raises(UnitError, match="8GiB") as caught:
        parse_size(text)
    assert len(str(caught.value)) < 250


def test_durations():
    for text, duration_s in {
        "4h": 14400, "30m": 1800, "90s": 90, "2d": 172800, "1h30m": 5400, "1h 30 min": 5400,
        "1.5h": 5400, "0.5s": 1, "01:30:00": 5400, "48:00:00": 172800, "1-00:00:00": 86400,
        "1w": 604800,
    }.items():  # fmt: skip
        assert parse_duration(text) == duration_s, text


@pytest.mark.parametrize("text", ["60", "1.5"])
def test_a_bare_number_is_refused_with_the_choices(text):
    with pytest.raises(UnitError, match=rf"write {text}s, {text}m or {text}h"):
        parse_duration(text)


def test_a_duration_that_is_too_long_is_called_so():
    with pytest.raises(UnitError, match="'2000000d' is too long: more than 100 years"):
        parse_duration("2000000d")


@pytest.mark.parametrize(
    "text",
    ["", "4x", "h", "-4h", "0s", "00:00:00", "10:00", "1:60:00", "1-24:00:00", "1h1h", "4h30"],
)
def test_no_duration(text):
    with pytest.raises(UnitError, match="1h30m"):
        parse_duration(text)


def test_sizes_and_durations_are_formatted():
    assert format_size(8 * 2**30) == "8GiB"
    assert format_size(16 * 10**9) == "14.9GiB"
    assert format_size(0) == "0B"
    assert format_duration(5400) == "1h30m"
    assert format_duration(0) == "0s"
    assert format_slurm_time(5400) == "01:30:00"
    assert format_slurm_time(90000) == "1-01:00:00"
    sizes = [0, 999, 1_500, 999_960, 2**30, 2 * 10**12]
    assert [*map(format_bytes, sizes)] == ["0 B", "999 B", "1.5 kB", "1.0 MB", "1.1 GB", "2.0 TB"]
    assert [counted(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


@given(st.integers(1, 10**9))
def test_durations_come_back(duration_s):
    assert parse_duration(format_duration(duration_s)) == duration_s
    assert parse_duration(format_slurm_time(duration_s)) == duration_s


@given(st.integers(1, 2**20), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_exact_sizes_come_back(count, unit):
    size_bytes = parse_size(f"{count}{unit}")
    again = parse_size(format_size(size_bytes))
    assert abs(again - size_bytes) <= size_bytes * 0.06


@given(st.text(max_size=40))
def test_any_text_is_a_unit_or_a_clear_error(text):
    for parse in (parse_size, parse_duration):
        try:
            assert parse(text) > 0
        except UnitError as error:
            assert str(error)


def test_names_are_ordered_as_people_count():
    names = ["w11", "w2", "w1.10", "W1", "w1", "w1.2", "10", "9", ""]
    ordered = ["", "9", "10", "W1", "w1", "w1.2", "w1.10", "w2", "w11"]
    assert sorted(names, key=natural) == ordered
