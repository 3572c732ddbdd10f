"""`dlctl suggest --write` changes what it names in a manifest, and not a character more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.errors import ManifestError
from dlctl.manifest.load import parse_manifest
from dlctl.suggest.edit import difference, edited

COMMENTED = """\
# What we train.
name: digits   # its name
memory: 32GiB   # too much?

framework: {name: pytorch, job: train.py}
checkpoint:
  keep: 3   # enough
"""
CHANGES = {
    "memory": "512MiB", "time": "12m", "cpus": "2", "checkpoint.every": "5m",
    "scheduler.partition": "short",
}  # fmt: skip


def test_comments_and_order_stay_and_missing_keys_come_where_the_docs_have_them():
    assert (
        edited(COMMENTED, CHANGES)
        == """\
# What we train.
name: digits   # its name
cpus: 2
memory: 512MiB   # too much?
time: 12m
scheduler: {partition: short}

framework: {name: pytorch, job: train.py}
checkpoint:
  keep: 3   # enough
  every: 5m
"""
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"name": "x", "memory": "8GiB"}', '{"name": "x", "memory": "1GiB", "time": "9m"}'),
        ("{name: x, memory: 8GiB}", "{name: x, memory: 1GiB, time: 9m}"),
        ("name: x\r\nmemory: '8GiB'\r\n", "name: x\r\nmemory: '1GiB'\r\ntime: 9m\r\n"),
        ("Name: x\nMemory: 8GiB", "Name: x\nMemory: 1GiB\ntime: 9m\n"),
        ("name: x\nmemory:\ntime: 4h", "name: x\nmemory: 1GiB\ntime: 9m"),
        ("description: |\n  a\n  b\nname: x\nlearners: 2",
         "description: |\n  a\n  b\nname: x\nlearners: 2\nmemory: 1GiB\ntime: 9m\n"),
        ("name: &n 8GiB\nmemory: *n\n", "name: &n 8GiB\nmemory: 1GiB\ntime: 9m\n"),
        ("name: ü # é\nmemory: 8GiB # ü\n", "name: ü # é\nmemory: 1GiB # ü\ntime: 9m\n"),
    ],
    ids=["json", "flow", "windows", "ffdl", "empty", "long text", "alias", "letters"],
)  # fmt: skip
def test_each_way_to_write_a_manifest(before, after):
    assert edited(before, {"memory": "1GiB", "time": "9m"}) == after


@pytest.mark.parametrize(
    "text", ["name: &n\n  x\nmemory: &m 8GiB\nversion: *m\n", "name: x\ncheckpoint: &c {}\n"]
)
def test_what_would_change_something_else_is_refused_with_what_to_write(text):
    with pytest.raises(ManifestError) as refused:
        edited(text, {"memory": "1GiB", "checkpoint.every": "5m"})
    assert "can't be changed in place" in refused.value.message
    assert "write `" in refused.value.hint


def test_the_difference_shows_no_line_that_stays():
    after = edited(COMMENTED, {"memory": "512MiB"})
    shown = difference(COMMENTED, after, "manifest.yml")
    assert shown.splitlines()[2:] == [
        "@@ -3 +3 @@", "-memory: 32GiB   # too much?", "+memory: 512MiB   # too much?",
    ]  # fmt: skip
    assert difference(COMMENTED, COMMENTED, "manifest.yml") == ""


KEYS = {"learners": "2", "cpus": "4", "memory": "8GiB", "time": "4h", "retries": "1"}
VALUES = st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in KEYS.items()})


@given(VALUES, st.permutations([*KEYS, "name", "framework"]), st.sampled_from(["", "  # why"]))
def test_whatever_the_order_only_what_is_named_changes(values, order, comment):
    told = values | {"name": "x", "framework": "{name: sh, command: 'true # 1'}"}
    text = "".join(f"{key}: {told[key]}{comment}\n" for key in order if key in told)
    after = edited(text, CHANGES)
    manifest = parse_manifest(after.encode(), "manifest.yml")
    assert (manifest.memory, manifest.time, manifest.cpus) == ("512MiB", "12m", 2.0)
    assert (manifest.checkpoint.every, manifest.scheduler.partition) == ("5m", "short")
    kept = [line for line in text.splitlines() if line.partition(":")[0] not in CHANGES]
    assert [line for line in after.splitlines() if line in kept] == kept
