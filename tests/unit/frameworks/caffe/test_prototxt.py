"""Protobuf's text format, as solver and net files use it."""

import pytest
from dlctl_framework_caffe.prototxt import parse

from learner.errors import UserFault


def test_numbers_words_texts_lists_and_nested_messages():
    found = parse(
        """# a comment
        base_lr: 1e-2, max_iter: 0x10; name: "a" 'b\\n'  # adjacent texts are one
        stepvalue: [10, 20] stepvalue: 30
        debug: true
        layer { type: "ReLU" relu_param < negative_slope: .1f > }
        layer { type: "Dropout" }
        policy: fixed""",
        "s.prototxt",
    )
    assert found.get("base_lr", 0.0) == 0.01
    assert found.get("name", "") == "ab\n"
    assert found.list_of("stepvalue", 0) == [10, 20, 30]
    assert found.get("debug", False) is True
    assert found.get("policy", "") == "fixed"
    first, second = found.messages("layer")
    assert first.message("relu_param").get("negative_slope", 0.0) == 0.1
    assert second.where == "s.prototxt:6"


@pytest.mark.parametrize(("text", "said"), [
    ("a: 1\nlayer {\n  b: 2\n", "s:2: the { that begins here is not closed"),
    ("a: 1\n}", "s:2: '}' closes nothing"),
    ("a: @", "s:1: '@' is not allowed here"),
    ("a:", "a has no value"),
    (": 1", "s:1: ':' stands where a field's name is expected"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_line(text, said):
    with pytest.raises(UserFault) as caught:
        parse(text, "s")
    assert said in caught.value.message


def test_a_value_of_another_type_is_named():
    found = parse('base_lr: "fast"', "s")
    with pytest.raises(UserFault, match="s:1: base_lr is 'fast', not a number"):
        found.get("base_lr", 0.0)


def test_a_field_that_nobody_knows_is_named_with_the_closest():
    found = parse("kernel_szie: 3", "s")
    with pytest.raises(UserFault, match="'kernel_szie'") as caught:
        found.refuse_unknown(("kernel_size",), "the layer 'conv1'")
    assert caught.value.hint == "did you mean 'kernel_size'?"
