"""Read protobuf's text format: solver and net files. Knows no message's fields."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from learner.errors import UserFault

T = TypeVar("T")
_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[-+]?[A-Za-z0-9_.][A-Za-z0-9_.+-]*)|(?P<mark>[{}<>\[\]:,;])"""
)
_FLOAT = re.compile(r"^([-+]?[\d.]+(?:[eE][-+]?\d+)?)[fF]$")
"""C++'s way to write a number, which the format allows."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass
class Message:
    """One message: the values of each field in the order of the file, and where they stand."""

    where: str
    """File and line, for messages to people."""
    fields: dict[str, list[Any]] = field(default_factory=dict)
    fields_read: set[str] = field(default_factory=set)
    """The fields that somebody has looked at."""

    def all(self, name: str) -> list[Any]:
        """Return every value of a field."""
        self.fields_read.add(name)
        return self.fields.get(name, [])

    def messages(self, name: str) -> list[Message]:
        """Return every value of a field that holds messages.

        Raises:
            UserFault: one of them is a plain value.
        """
        found = self.all(name)
        if not all(isinstance(value, Message) for value in found):
            raise UserFault(f"{self.where}: {name} is {found[0]!r}, not {{ … }}")
        return found

    def message(self, name: str) -> Message:
        """Return the one message of a field, an empty one if there is none."""
        found = self.messages(name)
        return found[-1] if found else Message(self.where)

    def get(self, name: str, default: T) -> T:
        """Return the last value of a field in the type of the default.

        Raises:
            UserFault: the value is of another type.
        """
        found = self.all(name)
        return default if not found else _converted(found[-1], default, f"{self.where}: {name}")

    def list_of(self, name: str, kind: T) -> list[T]:
        """Return every value of a field in the type of `kind`.

        Raises:
            UserFault: a value is of another type.
        """
        return [_converted(value, kind, f"{self.where}: {name}") for value in self.all(name)]

    def has(self, name: str) -> bool:
        """Return whether a field is set."""
        return bool(self.all(name))

    def refuse_unknown(self, known: tuple[str, ...], what: str) -> None:
        """Refuse fields that this version does not honour.

        Raises:
            UserFault: there is such a field; names it and the closest one.
        """
        for name in self.fields:
            if name not in self.fields_read and name not in known:
                close = difflib.get_close_matches(name, [*known, *self.fields_read], n=1)
                raise UserFault(
                    f"{self.where}: {what} has {name!r}, which dlctl's small caffe does not know",
                    hint=f"did you mean {close[0]!r}?"
                    if close
                    else "remove it, or train on nodes that have Caffe itself",
                )


def read(path: Path) -> Message:
    """Return the message in a file.

    Raises:
        UserFault: the file can't be read, or is not in this format; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserFault(f"{path.name} can't be read: {why}") from None
    return parse(text, path.name)


def parse(text: str, name: str) -> Message:
    """Return the message in a text; messages to people call it `name`.

    Raises:
        UserFault: the text is not in this format; names the line.
    """
    tokens = list(_tokens(text, name))
    message = Message(f"{name}:1")
    end = _fill(message, tokens, 0, name, "")
    if end < len(tokens):
        raise UserFault(f"{name}:{tokens[end][2]}: {tokens[end][1]!r} closes nothing")
    return message


_Token = tuple[str, str, int]
"""Its kind, its text and its line."""


def _tokens(text: str, name: str) -> Iterator[_Token]:
    position = line = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            line = text.count("\n", 0, position) + 1
            raise UserFault(f"{name}:{line}: {text[position]!r} is not allowed here")
        if match.lastgroup != "skip":
            line = text.count("\n", 0, position) + 1
            yield str(match.lastgroup), match[0], line
        position = match.end()


def _fill(message: Message, tokens: list[_Token], at: int, name: str, closing: str) -> int:
    """Read fields up to the closing mark; return the position after it."""
    while at < len(tokens):
        kind, text, line = tokens[at]
        if kind == "mark" and text in ",;":
            at += 1
            continue
        if closing and text == closing:
            return at + 1
        if kind != "word":
            if not closing and text in "}>":
                return at
            raise UserFault(f"{name}:{line}: {text!r} stands where a field's name is expected")
        at = _values(message, text, tokens, at + 1, name)
    if closing:
        raise UserFault(f"{message.where}: the {{ that begins here is not closed")
    return at


def _values(message: Message, field_name: str, tokens: list[_Token], at: int, name: str) -> int:
    found = message.fields.setdefault(field_name, [])
    if at < len(tokens) and tokens[at][1] == ":":
        at += 1
    if at >= len(tokens):
        raise UserFault(f"{message.where}: {field_name} has no value")
    kind, text, line = tokens[at]
    if kind == "mark" and text in "{<":
        inner = Message(f"{name}:{line}")
        at = _fill(inner, tokens, at + 1, name, "}" if text == "{" else ">")
        found.append(inner)
        return at
    if text == "[" and kind == "mark":
        at += 1
        while at < len(tokens) and tokens[at][1] != "]":
            if tokens[at][1] != ",":
                found.append(_value(tokens[at], name))
            at += 1
        return at + 1
    found.append(_value(tokens[at], name))
    at += 1
    while kind == "text" and at < len(tokens) and tokens[at][0] == "text":
        found[-1] += _value(tokens[at], name)  # adjacent strings are one
        at += 1
    return at


def _value(token: _Token, name: str) -> Any:
    kind, text, line = token
    if kind == "text":
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), text[1:-1])
    if kind == "mark":
        raise UserFault(f"{name}:{line}: {text!r} stands where a value is expected")
    if text in ("true", "false"):
        return text == "true"
    for number in (lambda word: int(word, 0), lambda word: float(_FLOAT.sub(r"\1", word))):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _converted(value: Any, like: T, where: str) -> T:
    if isinstance(like, float) and isinstance(value, int) and not isinstance(value, bool):
        return type(like)(value)
    if type(value) is type(like):
        return value
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word or text"}
    shown = "{ … }" if isinstance(value, Message) else repr(value)
    raise UserFault(f"{where} is {shown}, not {kinds.get(type(like), 'of the right type')}")
