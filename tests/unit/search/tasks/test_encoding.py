"""Payloads and values: JSON and MessagePack, and what is neither."""

import json
import sys

import msgpack
import pytest

from search.tasks.run import TaskError, decode, encode


@pytest.mark.parametrize("encoding", ["", "json"])
def test_json_comes_back(encoding):
    assert decode(encoding, b'{"x": [1, 2.5, null]}') == {"x": [1, 2.5, None]}
    assert json.loads(encode(encoding, {"x": "é"})) == {"x": "é"}


def test_message_pack_comes_back_with_its_bytes():
    value = {"picture": b"\x00\xff", "x": [1, 2.5, None]}
    assert decode("msgpack", msgpack.packb(value)) == value
    assert msgpack.unpackb(encode("msgpack", value)) == value


@pytest.mark.parametrize(
    "encoding, payload, said",
    [
        ("json", b"{", "the payload can't be read as JSON: "),
        ("msgpack", b"\x81", "the payload can't be read as MessagePack: "),
        ("msgpack", msgpack.packb(1) + b"\x00", "the payload can't be read as MessagePack: "),
        ("pickle", b"", "this worker does not understand payloads in 'pickle'"),
    ],
)
def test_a_payload_that_can_not_be_read_is_a_sentence(encoding, payload, said):
    with pytest.raises(TaskError) as raised:
        decode(encoding, payload)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize(
    "value, said",
    [
        ({"loss": float("nan")}, "the value holds NaN or infinity"),
        ({"x": object()}, "the value can't be written as"),
    ],
)
def test_a_value_that_is_none_is_a_sentence(encoding, value, said):
    with pytest.raises(TaskError) as raised:
        encode(encoding, value)
    assert str(raised.value).startswith(said)


def test_only_message_pack_has_bytes_and_only_json_has_large_integers():
    with pytest.raises(TaskError, match="can't be written as JSON"):
        encode("json", b"bytes")
    assert encode("json", 2**64) == b"18446744073709551616"
    with pytest.raises(TaskError, match="can't be written as MessagePack"):
        encode("msgpack", 2**64)


def test_a_worker_without_msgpack_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(TaskError, match="this worker's Python has no msgpack"):
        decode("msgpack", b"\x80")
