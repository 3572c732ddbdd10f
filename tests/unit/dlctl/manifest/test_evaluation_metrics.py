"""The section evaluation_metrics: FfDL's spellings, what is refused, and what the plan gets."""

import json

import pytest

from dlctl.contract.measured.parsers import SPELLINGS, ParserType
from dlctl.errors import ManifestError
from dlctl.manifest.checks import check_files, not_in_this_version
from dlctl.manifest.load import parse_manifest
from dlctl.plan.sections import metrics_plan

HEAD = "name: x\nframework: {name: f, command: run}\nevaluation_metrics:\n"
GROUP = 'groups: {test: {regex: "loss=(?P<loss>.*)", values: {loss: {type: FLOAT, value: $loss}}}}'


def parse(text):
    return parse_manifest((HEAD + text).encode(), "m.yml")


def planned(text):
    return metrics_plan(parse(text).evaluation_metrics)


def test_every_spelling_of_every_type():
    needs = {ParserType.REGEX: f", {GROUP}", ParserType.PYTHON: ", parser: p.py"}
    for word, kind in SPELLINGS.items():
        for spelling in (word, word.upper()):
            quoted = f'"{spelling}"'
            assert planned(f"  {{type: {quoted}{needs.get(kind, '')}}}\n")["type"] == kind.value
    for absent in ("  {type: null}\n", "  {type: }\n", "  {image_tag: x}\n"):
        assert planned(absent) == {"type": "logger"}
    assert metrics_plan(parse_manifest(HEAD.encode(), "m.yml").evaluation_metrics) is None


def test_ffdls_example_of_groups_becomes_a_plain_dictionary():
    text = """\
  type: regex_extractor
  image_tag: latest
  in: "$JOB_STATE_DIR/logs/training-log.txt"
  linelookahead: 3
  eventTypes: [images, 1.5]
  groups:
    train:
      regex: '%{GLOG_STAMP:stamp}.*Iteration %{INT:iteration} .*loss = %{FLOAT:loss}'
      meta: {time: $stamp, subid: ""}
      scalars:
        loss: {type: FLOAT, value: $loss}
        batch: {type: 2, value: 64}
      etimes:
        iteration: {type: int, value: $iteration}
        note: {value: literal}
"""
    manifest = parse(text)
    found = metrics_plan(manifest.evaluation_metrics)
    assert json.loads(json.dumps(found)) == found
    assert (found["in"], found["line_lookahead"]) == ("$JOB_STATE_DIR/logs/training-log.txt", 3)
    group = found["groups"]["train"]
    assert group["meta"] == {"time": "$stamp", "subid": ""}
    assert group["scalars"] == {
        "loss": {"type": "FLOAT", "value": "$loss"},
        "batch": {"type": "INT", "value": "64"},
    }
    assert group["etimes"]["note"] == {"type": "STRING", "value": "literal"}
    again = parse_manifest(manifest.to_yaml().encode(), "m.yml")
    assert metrics_plan(again.evaluation_metrics) == found
    assert not [told for told in not_in_this_version(manifest) if "evaluation" in told]


def test_four_lines_are_looked_at_by_default():
    assert planned(f"  {{type: regex_extractor, {GROUP}}}\n")["line_lookahead"] == 4


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("  type: tensorbord\n", "m.yml:4:", "'tensorbord' is no parser"),
        ("  type: true\n", "m.yml:4:", "True is no parser"),
        ("  type: regex_extractor\n", "m.yml:3:", "needs groups"),
        ("  type: python\n", "m.yml:3:", "needs parser"),
        ("  type: auto\n  parser: p.py\n", "m.yml:3:", "type is not python"),
        ("  type: python\n  parser: ../p.py\n", "m.yml:5:", "leaves the folder"),
        ("  line_lookahead: 0\n", "m.yml:4:", "at least 1"),
        ("  line_lookahead: 2\n  linelookahead: 2\n", "m.yml:3:", "mean the same"),
        ("  colour: red\n", "m.yml:4:", "colour"),
        ("  inn: tb\n", "m.yml:4:", "unknown key; did you mean 'in'? Allowed: type, in, line_"),
        ("  groups:\n    g: {regex: '(a'}\n", "m.yml:5:", "is no regular expression"),
        ("  groups:\n    g: {regex: '%{NOPE}'}\n", "m.yml:5:", "%{NOPE} is not in the library"),
        ("  groups:\n    g: {regex: a, values: {x: {value: $y}}}\n", "m.yml:5:", "names no group"),
        ("  groups:\n    g: {regex: a, meta: {place: 1}}\n", "m.yml:5:", "'place' is unknown"),
        ("  groups:\n    g: {regex: a, values: {x: {type: BOOL, value: 1}}}\n", "m.yml:5:",
         "'BOOL' is no type"),
        ("  groups:\n    g: {regex: a, values: {x: {value: 1}}, scalars: {x: {value: 1}}}\n",
         "m.yml:5:", "mean the same"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_with_its_line(text, place, words):
    with pytest.raises(ManifestError) as told:
        parse(text)
    (line,) = told.value.problems
    assert line.startswith(place) and words in line, line


def test_the_parsers_file_has_to_be_there(tmp_path):
    manifest = parse("  {type: python, parser: my_parser.py}\n")
    with pytest.raises(ManifestError, match=r"evaluation_metrics.parser: my_parser.py does not"):
        check_files(manifest, tmp_path)
    (tmp_path / "my_parser.py").touch()
    check_files(manifest, tmp_path)
