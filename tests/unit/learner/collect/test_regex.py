"""FfDL's regex_extractor: windows, library, types, and the same results as the plain way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.contract.measured.parsers import compile_regex
from learner.collect.parsers.regex import Group, RegexParser

CAFFE = {
    "test": {
        "regex": (
            r"%{GLOG_STAMP:stamp}.*Iteration %{INT:iteration}, Testing.*\n"
            r".*Test net output .* accuracy = %{FLOAT:accuracy}\n"
            r".*Test net output .* loss = %{FLOAT:loss}"
        ),
        "meta": {"time": "$stamp"},
        "scalars": {
            "accuracy": {"type": "FLOAT", "value": "$accuracy"},
            "loss": {"type": "FLOAT", "value": "$loss"},
        },
        "etimes": {"iteration": {"type": "INT", "value": "$iteration"}},
    },
    "train": {
        "regex": (
            r"%{GLOG_STAMP:stamp}.*solver.cpp:.*Iteration %{INT:iteration} \(.*\n"
            r".*solver.cpp.*Train .*loss = %{FLOAT:loss}.*\n.*.lr = %{FLOAT:lr}"
        ),
        "meta": {"time": "$stamp"},
        "values": {
            "learning-rate": {"type": "FLOAT", "value": "$lr"},
            "loss": {"type": "FLOAT", "value": "$loss"},
        },
        "etimes": {"iteration": {"type": "INT", "value": "$iteration"}},
    },
}
LOG = """\
I0101 00:00:01.000000 42 solver.cpp:218] Iteration 100 (12.3 iter/s, 1.6s/20), loss = 0.5
I0101 00:00:01.000000 42 solver.cpp:237]     Train net output #0: loss = 0.25 (* 1 = 0.25 loss)
I0101 00:00:01.000000 42 sgd_solver.cpp:105] Iteration 100, lr = 0.01
something else
I0101 00:00:02.500000 42 solver.cpp:330] Iteration 100, Testing net (#0)
I0101 00:00:03.000000 42 solver.cpp:397]     Test net output #0: accuracy = 0.98
I0101 00:00:03.000000 42 solver.cpp:397]     Test net output #1: loss = 0.05 (* 1 = 0.05 loss)
"""


def groups_of(plain):
    return [Group.of(name, group) for name, group in plain.items()]


def parser_of(plain, lookahead=4, complain=lambda _: None, **options):
    return RegexParser(groups_of(plain), complain, lookahead, **options)


def feed_in_pieces(parser, text, sizes):
    lines, found, at = text.splitlines(keepends=True), [], 0
    for size in [*sizes, len(lines)]:
        found += parser.feed("".join(lines[at : at + size])) if lines[at : at + size] else []
        at += size
    return found


def test_caffes_log_by_the_groups_of_ffdls_example():
    parser = parser_of(CAFFE)
    # The window slides by a line with each line; at the end, without one.
    train, test = parser.feed(LOG) + parser.finish()
    assert (train.group, train.step) == ("train", 100)
    assert train.values == {"learning-rate": 0.01, "loss": 0.25}
    assert (test.group, test.step) == ("test", 100)
    assert test.values == {"accuracy": 0.98, "loss": 0.05}
    assert test.time - train.time == 1.5


def test_a_window_that_is_too_short_matches_nothing():
    assert parser_of(CAFFE, lookahead=2).feed(LOG) == []


@pytest.mark.parametrize("every", [1, 4, 10])
def test_lines_between_records_cost_no_record(every):
    plain = {"g": {"regex": "x=%{INT:x}", "scalars": {"x": {"type": "INT", "value": "$x"}}}}
    text = "".join(f"x={n}\n" + ("noise\n" if n % every == 0 else "") for n in range(200))
    parser = parser_of(plain)
    found = feed_in_pieces(parser, text, [7, 30, 1, 1, 50]) + parser.finish()
    assert [record.values["x"] for record in found] == list(range(200))


def test_types_literals_and_groups_that_took_no_part():
    plain = {
        "g": {
            "regex": r"n=%{INT:n} x=(?P<x>\S+)( y=(?P<y>\d+))?",
            "meta": {"subid": "$x", "time": "1700000000123"},
            "scalars": {
                "n": {"type": "INT", "value": "$n"},
                "x": {"type": "FLOAT", "value": "$x"},
                "y": {"type": "INT", "value": "$y"},
                "unknown": {"type": "INT", "value": "$nothing"},
                "note": {"value": "as it is"},
                "json": {"type": "JSONSTRING", "value": "$x"},
                "step": {"type": "FLOAT", "value": "0.5"},
            },
            "etimes": {
                "iteration": {"type": "INT", "value": "$n"},
                "epoch": {"type": "INT", "value": "3"},
                "samples": {"type": "INT", "value": "64"},
            },
        }
    }
    one, other = parser_of(plain).feed("n=7 x=nan\nn=+8 x=word y=2\n")
    assert (one.step, one.epoch, one.time) == (7, 3, 1700000000.123)
    assert one.values == {"n": 7, "x": None, "step_": 0.5, "samples": 64}
    assert one.texts == {"subid": "nan", "note": "as it is", "json": "nan"}
    assert other.values == {"n": 8, "y": 2, "step_": 0.5, "samples": 64}
    assert other.texts["json"] == "word"


BOTH = "epoch 3 train_loss=0.5 val_loss=0.75 val_time=2 lr=0.1\n"


def scalars(*names):
    found = "".join(f".*{name}=%{{FLOAT:{name}}}" for name in names)
    values = {name: {"type": "FLOAT", "value": f"${name}"} for name in names}
    epoch = {"epoch": {"type": "INT", "value": "$epoch"}}
    return {"regex": f"epoch %{{INT:epoch}}{found}", "scalars": values, "etimes": epoch}


def test_names_in_a_single_group_say_which_data_they_are_of():
    """All values of the line were of a group `all`, by which nothing was judged."""
    found = parser_of({"all": scalars("train_loss", "val_loss", "val_time", "lr")}).feed(BOTH)
    assert {line.group: (line.epoch, line.values) for line in found} == {
        "train": (3, {"loss": 0.5}), "validation": (3, {"loss": 0.75, "time_": 2.0}),
        "all": (3, {"lr": 0.1}),
    }  # fmt: skip


def test_a_group_that_finds_nothing_left_of_its_lines_is_remarked_once():
    said = []
    plain = {"train": scalars("train_loss"), "validation": scalars("val_loss")}
    found = parser_of(plain, complain=said.append).feed(BOTH * 3)
    assert [line.values for line in found] == 3 * [{"train_loss": 0.5}]
    assert len(said) == 1
    assert "the group 'validation' in evaluation_metrics matches lines that the group" in said[0]
    assert "Let a single group find all values of a line" in said[0]


def test_the_librarys_patterns():
    for name, text in {
        "GLOG_STAMP": "I0123 12:34:56.789012",
        "TIMESTAMP": "2026-11-24T10:11:12.123456Z",
        "FLOAT": "-1.5e-07",
        "INT": "-12",
        "INT_ANY": "0x1F",
        "HEX": "dead12",
    }.items():
        match = compile_regex(f"%{{{name}:x}} (?P<y>a)%{{INT}}$").match(f"{text} a3")
        assert match is not None and match["x"] == text, name
    assert compile_regex("%{FLOAT:x}$").match("NaN")
    with pytest.raises(ValueError, match="NOPE"):
        compile_regex("%{NOPE:x}")


def test_a_group_that_explodes_is_left_out_and_said_once():
    said = []
    plain = {
        "bad": {"regex": "(a+)+b", "scalars": {}},
        "good": {"regex": "a+ x=%{INT:x}", "scalars": {"x": {"type": "INT", "value": "$x"}}},
    }
    parser = RegexParser(groups_of(plain), said.append, 1, limit_s=0.05)
    line = "a" * 60 + " x=5\n"
    assert [found.values for found in parser.feed(line * 3)] == [{"x": 5}] * 3
    assert len(said) == 1 and "'bad'" in said[0] and "\n" not in said[0]


def test_the_window_lives_on_in_another_process():
    for cut in range(1, 7):
        lines = LOG.splitlines(keepends=True)
        before, after = parser_of(CAFFE), parser_of(CAFFE)
        found = before.feed("".join(lines[:cut]))
        after.remember(before.memory())
        found += after.feed("".join(lines[cut:])) + after.finish()
        assert [line.group for line in found] == ["train", "test"], cut
    for nonsense in (None, 5, {"a": 1}, [1, 2]):
        parser_of(CAFFE).remember(nonsense)


# The same as the plain way -----------------------------------------------------------------------

PATTERNS = st.sampled_from([
    "a", "ab", "b.*a", "a\nb", "^b$", "(a|b)c", "c?ab", "(?P<x>c+)\n", ".*ca", "a.*b.*c", "(?i)A",
    "b$", r"a\Z", "(?!a)b", "(?<!a)c", "(ab)+\n", "[ab]\n[bc]", "", r"a{2}", "(?s:a.c)", r"\n",
    "c\n",
])  # fmt: skip
LINES = st.lists(st.text("abc", max_size=4), max_size=24)


def plain_way(groups, text, lookahead):
    window, found = [], []
    for line in text.splitlines(keepends=True):
        window.append(line)
        if len(window) > lookahead:
            window.pop(0)
        while window and (first := first_match(groups, "".join(window))):
            group, match = first
            found.append((group.name, match.group(0)))
            del window[: max(1, len(match.group(0).splitlines()))]
    return found


def first_match(groups, text):
    matches = ((group, group.pattern.match(text)) for group in groups)
    return next(((group, match) for group, match in matches if match), None)


@given(st.lists(PATTERNS, min_size=1, max_size=3), LINES, st.integers(1, 5),
       st.lists(st.integers(1, 6), max_size=4))  # fmt: skip
def test_pieces_of_a_log_have_the_records_of_the_whole(patterns, lines, lookahead, sizes):
    plain = {
        f"g{number}": {
            "regex": f"(?P<all>{regex})" if not regex.startswith("(?i)") else regex,
            "scalars": {"all": {"value": "$all"}, "some": {"value": "x"}},
        }
        for number, regex in enumerate(patterns)
    }
    text = "".join(f"{line}\n" for line in lines)
    found = feed_in_pieces(parser_of(plain, lookahead), text, sizes)
    groups = groups_of(plain)
    expected = plain_way(groups, text, lookahead)
    assert [line.group for line in found] == [name for name, _ in expected]
    for line, (_, whole) in zip(found, expected, strict=True):
        assert line.texts.get("all", whole) == whole
