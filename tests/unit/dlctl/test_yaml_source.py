import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.yaml_source import MAX_BYTES, YamlError, load_bytes, load_file, parse_scalar, plain

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdef", "bcdefg", strict=True)
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{" + ", ".join(f"{n}: {{<<: *{old}}}" for n in range(10)) + "}\n"
    for old, new in zip("abcdef", "bcdefg", strict=True)
)


def problems(text):
    with pytest.raises(YamlError) as caught:
        load_bytes(text.encode() if isinstance(text, str) else text, "m.yml")
    return caught.value.problems


def test_every_key_and_value_has_its_place():
    document = load_bytes(b"a: 1\nb:\n  - c: x\n    d: [1, 2]\n", "m.yml")
    assert plain(document.data) == {"a": 1, "b": [{"c": "x", "d": [1, 2]}]}
    assert document.where(("b", 0, "d"), key=True) == "m.yml:4:5"
    assert document.where(("b", 0, "d", 1)) == "m.yml:4:12"
    assert document.where(("b", 0, "missing")) == "m.yml:3:5"


def test_scalars():
    for text, value in {
        "no": "no", "on": "on", "4:00:00": "4:00:00", "2024-01-01": "2024-01-01", "007": "007",
        "1_000": "1_000", "1e-3": 0.001, "0x10": 16, "true": True, "~": None, "'1.0'": "1.0",
        "!!str 1.0": "1.0",
    }.items():  # fmt: skip
        assert plain(load_bytes(f"k: {text}".encode(), "m.yml").data) == {"k": value}, text
    data = load_bytes(b"version: 1.10\non: 1\n1.0: &x {b: [1]}\nc: *x\n", "m.yml").data
    assert data["version"].text == "1.10", "a number knows how it was written"
    assert list(data) == ["version", "on", "1.0", "c"], "keys are text"
    assert data["c"] == {"b": [1]}, "an alias is written out"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "m.yml: the file is empty"),
        ("# only a comment\n", "m.yml: the file is empty"),
        ("---\n", "m.yml: the file is empty"),
        ("a: 1\n---\nb: 2\n", "m.yml:2:1: a second document"),
        ("a: 1\nb:\n\t c: 1\n", "m.yml:3:1: YAML does not allow tabs"),
        (b"a: 1\nb: \xff\n", "m.yml:2:4: the byte 0xff is not UTF-8"),
        ("a: !!python/object/apply:os.system [x]\n", "m.yml:1:4: the tag '!!python"),
        ("a: [1, 2\n", "not valid YAML"),
        ("a: *b\n", "m.yml:1:4: the alias *b has no anchor"),
        ("a: &a [*a]\n", "has no anchor before it"),
        ("a: " + "[" * 5000, "nested more than 40"),
        ("? [a]\n: 1\n", "a key must be a word"),
        ("b: &b 1\nc:\n  <<: *b\n", "m.yml:3:3: << takes what an alias names, as in <<: *base"),
        ("<<: []\n", "m.yml:1:1: << takes"),
        ("b: &b {c: 1}\nd:\n  <<: *b\n  <<: *b\n", "m.yml:4:3: the key '<<' appears twice; the"),
        ("b: &b {<<: *b}\n", "has no anchor before it"),
        (MERGE_BOMB, "more than"),
        ("a: \x00", "not allowed in YAML"),
        (BOMB, "more than"),
        ("a" * (MAX_BYTES + 1), "1.1 MiB is too large; at most 1 MiB"),
    ],
)
def test_refusals(text, expected):
    (problem,) = problems(text)
    assert expected in problem
    assert len(problem) < 200


MERGED = """\
base: &base
  lr: 0.1
  deep: {a: 1}
more: &more {lr: 0.2, momentum: 0.9}
one:
  lr: 0.3
  <<: *base
two:
  <<: [*base, *more]
  deep: {b: 2}
three:
  <<: *base
  "<<": text
"""


def test_a_merge_key_brings_what_does_not_stand_there_itself():
    document = load_bytes(MERGED.encode(), "m.yml")
    assert document.data["one"] == {"lr": 0.3, "deep": {"a": 1}}
    assert document.data["two"] == {"lr": 0.1, "deep": {"b": 2}, "momentum": 0.9}
    assert document.data["three"] == {"lr": 0.1, "deep": {"a": 1}, "<<": "text"}
    assert document.data["one"]["deep"] is not document.data["base"]["deep"]
    # Each has the place of the anchor's key.
    assert document.where(("one", "deep", "a")) == "m.yml:3:13"
    assert document.where(("one", "deep"), key=True) == "m.yml:3:3"
    assert document.where(("one", "lr")) == "m.yml:6:7"
    assert document.where(("two", "momentum")) == "m.yml:4:33"
    assert document.where(("two", "deep", "b")) == "m.yml:10:13"


def test_a_large_a_missing_file_and_a_folder_are_refused_unread(tmp_path):
    path = tmp_path / "large.yml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    for place, said in ((path, r"large.yml: 47.7 MiB is too large"), (tmp_path, "is a folder"),
                        (tmp_path / "none.yml", "does not exist")):  # fmt: skip
        with pytest.raises(YamlError, match=said):
            load_file(place)


def test_all_duplicate_keys_are_named():
    found = problems("a: 1\na: 2\nb:\n  c: 1\n  c: 2\n")
    assert found == [
        "m.yml:2:1: the key 'a' appears twice; the first is on line 1",
        "m.yml:5:3: the key 'c' appears twice; the first is on line 4",
    ]


@given(st.text(max_size=80))
def test_any_text_loads_or_has_problems(text):
    try:
        load_bytes(text.encode("utf-8", "surrogatepass"), "m.yml")
    except YamlError as error:
        assert error.problems
    parse_scalar(text)
