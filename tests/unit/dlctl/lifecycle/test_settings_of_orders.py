"""The settings that `dlctl tune` takes."""

import pytest

from dlctl.errors import RecordError
from dlctl.lifecycle.orders import parse_settings


def test_values_are_numbers():
    assert parse_settings(["learning_rate=0.01", "batch_size=64", "momentum=0"]) == {
        "lr": 0.01, "batch_size": 64.0, "momentum": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(("word", "kind"), [
    ("momentum=-1", "a number from 0 on"), ("lr=x", "a number from 0 on"),
    ("batch_size=2.5", "a whole number above 0"), ("clip_gradient_norm=0", "a number above 0"),
])  # fmt: skip
def test_a_hint_names_what_is_allowed(word, kind):
    """0 is, for a learning rate, a momentum and a decay; the hint asked for more than 0."""
    with pytest.raises(RecordError, match="is not allowed") as refused:
        parse_settings([word])
    assert refused.value.hint.endswith(kind)
