"""Load one YAML document safely, and remember the position of each key and value.

The YAML is that of version 1.2: only `true` and `false` are booleans, so `no` and `on` stay text;
`4:00:00` and `2024-01-01` stay text; `1e-3` is a number. Numbers remember how they were written
(`IntText`, `FloatText`), so that `version: 1.0` can be the text "1.0". Keys are always text.
A merge key (`<<: *base`) is that of version 1.1; what it brings has the place of the anchor's keys.

Refused, with one sentence each: files over `MAX_BYTES`, text that is not UTF-8, nothing at all,
several documents, tags, duplicate keys, deep nesting, and aliases that grow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 40
MAX_NODES = 50_000
MAX_ALIASES = 100

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})|0x[0-9a-fA-F]{1,16}|0o[0-7]{1,22}")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)"
)
_PLAIN_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_Loader = cast(Any, getattr(yaml, "CSafeLoader", yaml.SafeLoader))

_MERGE = "<<"
Trail = tuple[str | int, ...]
"""The keys and positions that lead to a value."""


class YamlError(ValueError):
    """The text can't be loaded. `problems` holds one line for each fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class IntText(int):
    """An integer that knows how it was written."""

    text: str


class FloatText(float):
    """A float that knows how it was written."""

    text: str


@dataclass
class Document:
    """A loaded document: plain data, and the place of each key and value."""

    name: str
    data: Any = None
    key_marks: dict[Trail, tuple[int, int]] = field(default_factory=dict)
    value_marks: dict[Trail, tuple[int, int]] = field(default_factory=dict)
    folded: set[Trail] = field(default_factory=set)
    """The texts that are written as `>`."""

    def where(self, trail: Trail, *, key: bool = False) -> str:
        """Return `name:line:column` of a value (or its key), or of the nearest thing around it."""
        for end in range(len(trail), -1, -1):
            marks = self.key_marks if key or end < len(trail) else self.value_marks
            mark = marks.get(trail[:end]) or self.value_marks.get(trail[:end])
            if mark is not None:
                return f"{self.name}:{mark[0]}:{mark[1]}"
        return self.name

    def order(self, trail: Trail) -> tuple[int, int]:
        """Return the line and column of the nearest place, to sort by."""
        for end in range(len(trail), -1, -1):
            mark = self.key_marks.get(trail[:end]) or self.value_marks.get(trail[:end])
            if mark is not None:
                return mark
        return (0, 0)


def load_file(path: Path, name: str | None = None) -> Document:
    """Return the document in a file.

    Raises:
        YamlError: the file can't be read or is not acceptable YAML.
    """
    shown = name or path.name
    try:
        if not path.is_file():
            kind = "is a folder, not a file" if path.is_dir() else "is not a file"
            inside = path / "manifest.yml"
            way = f"; {inside} is one" if inside.is_file() else ""
            raise YamlError([f"{path}: {kind if path.exists() else 'does not exist'}{way}"])
        if path.suffix in (".py", ".sh"):
            raise YamlError([f"{path}: is a program; a manifest names it, and `dlctl init .` "
                             "writes one beside it"])  # fmt: skip
        if path.stat().st_size > MAX_BYTES:
            raise YamlError([_too_large(shown, path.stat().st_size)])
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise YamlError([f"{path}: can't be read: {error.strerror}; `ls -ld {path}` shows who may"]
                        ) from error  # fmt: skip
    return load_bytes(content, shown)


def load_bytes(content: bytes, name: str) -> Document:
    """Return the document in `content`; messages call it `name`.

    Raises:
        YamlError: the content is not acceptable YAML.
    """
    if len(content) > MAX_BYTES:
        raise YamlError([_too_large(name, len(content))])
    text = _decoded(content, name)
    composer = _Composer(Document(name))
    try:
        composer.compose(iter(yaml.parse(text, Loader=_Loader)))
    except yaml.YAMLError as error:
        raise YamlError([_syntax(error, text, name)]) from error
    if composer.problems:
        raise YamlError(composer.problems)
    return composer.document


def parse_scalar(text: str) -> Any:
    """Return what an unquoted YAML scalar means: a number, a boolean, None or the text itself."""
    if text in _PLAIN_WORDS:
        return _PLAIN_WORDS[text]
    if _INT.fullmatch(text):
        number = IntText(text, 0)
        number.text = text
        return number
    if _FLOAT.fullmatch(text):
        real = FloatText(text.replace(".inf", "inf").replace(".Inf", "inf").replace(".INF", "inf"))
        real.text = text
        return real
    return text


def plain(value: Any) -> Any:
    """Return the data with ordinary numbers in it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, IntText):
        return int(value)
    return float(value) if isinstance(value, FloatText) else value


class _Composer:
    """Turn parser events into data: yaml's own composer neither counts nor remembers enough."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[str] = []
        self.anchors: dict[str, list[Any]] = {}
        self.recording: list[list[Any]] = []
        self.nodes = self.aliases = 0

    def compose(self, events: Iterator[Any]) -> None:
        """Fill the document, or collect problems."""
        next(events)  # StreamStart
        if isinstance(next(events), yaml.StreamEndEvent):
            self._stop(None, "the file is empty")
        first = self._next(events)
        self.document.data = self._value(first, events, (), 0)
        next(events)  # DocumentEnd
        following = next(events)
        if isinstance(following, yaml.DocumentStartEvent):
            self._stop(following, "a second document begins here; only one is allowed")
        if self.document.data is None and not self.problems:
            self._stop(None, "the file is empty")

    def _next(self, events: Iterator[Any]) -> Any:
        event = next(events)
        for recorded in self.recording:
            recorded.append(event)
        return event

    def _value(self, event: Any, events: Iterator[Any], trail: Trail, depth: int) -> Any:
        self._count(event, depth)
        self.document.value_marks[trail] = _mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, trail, depth)
        tag = event.tag
        if tag is not None and tag not in ("tag:yaml.org,2002:str", "!"):
            self._stop(event, f"the tag {_short_tag(tag)} is not allowed; remove it")
        if event.anchor is None:
            return self._content(event, events, trail, depth)
        recorded = [event]
        self.recording.append(recorded)
        value = self._content(event, events, trail, depth)
        self.recording.remove(recorded)
        self.anchors[event.anchor] = recorded
        return value

    def _alias(self, event: Any, trail: Trail, depth: int) -> Any:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            self._stop(event, f"more than {MAX_ALIASES} aliases; write the values out")
        recorded = self.anchors.get(event.anchor)
        if recorded is None:
            self._stop(event, f"the alias *{event.anchor[:40]} has no anchor before it")
        held, self.recording = self.recording, []
        replayed = iter(cast(list[Any], recorded)[1:])
        value = self._content(cast(list[Any], recorded)[0], replayed, trail, depth)
        self.recording = held
        return value

    def _content(self, event: Any, events: Iterator[Any], trail: Trail, depth: int) -> Any:
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, trail, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := self._next(events), yaml.SequenceEndEvent):
                items.append(self._value(item, events, (*trail, len(items)), depth + 1))
            return items
        if event.style == ">":
            self.document.folded.add(trail)
        is_plain = event.implicit[0] and event.style in (None, "")
        return parse_scalar(event.value) if is_plain else event.value

    def _mapping(self, events: Iterator[Any], trail: Trail, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[tuple[Trail, dict[str, Any]]] = []
        while not isinstance(event := self._next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._stop(event, "a key must be a word")
            key = str(event.value)
            place = (*trail, key)
            is_merge = key == _MERGE and event.implicit[0]
            if key in found or (is_merge and merged):
                line = self.document.key_marks[place][0]
                self._note(
                    event, f"the key {key[:60]!r} appears twice; the first is on line {line}"
                )
                self._value(self._next(events), events, (*place, "\0"), depth + 1)
                continue
            self.document.key_marks[place] = _mark(event)
            if is_merge:
                merged = self._merged(event, self._next(events), events, place, depth)
                continue
            found[key] = self._value(self._next(events), events, place, depth + 1)
        for source, values in merged:  # keys that stand here count, whatever their order is
            for key in [key for key in values if key not in found]:
                found[key] = values[key]
                self._move_marks((*source, key), (*trail, key))
        return found

    def _merged(
        self, key: Any, event: Any, events: Iterator[Any], trail: Trail, depth: int
    ) -> list[tuple[Trail, dict[str, Any]]]:
        """Return the mappings that a merge key names, each with where its marks are."""
        value = self._value(event, events, trail, depth)
        is_list = isinstance(value, list)
        found = (
            [((*trail, n), each) for n, each in enumerate(value)] if is_list else [(trail, value)]
        )
        if not found or not all(isinstance(each, dict) for _, each in found):
            self._stop(key, "<< takes what an alias names, as in <<: *base, or a list of such")
        return found

    def _move_marks(self, old: Trail, new: Trail) -> None:
        count = len(old)
        for marks in (self.document.key_marks, self.document.value_marks):
            for trail in [trail for trail in marks if trail[:count] == old]:
                marks[new + trail[count:]] = marks[trail]
        for trail in [trail for trail in self.document.folded if trail[:count] == old]:
            self.document.folded.add(new + trail[count:])

    def _count(self, event: Any, depth: int) -> None:
        self.nodes += 1
        if depth > MAX_DEPTH:
            self._stop(event, f"nested more than {MAX_DEPTH} levels deep")
        if self.nodes > MAX_NODES:
            self._stop(event, f"more than {MAX_NODES} values, aliases written out; make it smaller")

    def _note(self, event: Any, what: str) -> None:
        where = "" if event is None else ":{}:{}".format(*_mark(event))
        self.problems.append(f"{self.document.name}{where}: {what}")

    def _stop(self, event: Any, what: str) -> None:
        self._note(event, what)
        raise YamlError(self.problems)


def _mark(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _short_tag(tag: str) -> str:
    return repr(tag.replace("tag:yaml.org,2002:", "!!")[:60])


def _too_large(name: str, size_bytes: int) -> str:
    tenths = math.ceil(size_bytes * 10 / 2**20)  # rounded up, so that it is never the limit itself
    return f"{name}: {tenths / 10} MiB is too large; at most {MAX_BYTES // 2**20} MiB is allowed"


def _decoded(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        byte = content[error.start]
        raise YamlError(
            [f"{name}:{line}:{column}: the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"]
        ) from error
    if not text.strip():
        raise YamlError([f"{name}: the file is empty"])
    return text


def _syntax(error: yaml.YAMLError, text: str, name: str) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
        return f"{name}:{line}: a character here is not allowed in YAML"
    lines = text.splitlines()
    line_text = lines[mark.line] if mark.line < len(lines) else ""
    indent = line_text[: len(line_text) - len(line_text.lstrip())]
    where = f"{name}:{mark.line + 1}:{mark.column + 1}"
    if "\t" in indent or "\t" in line_text[mark.column : mark.column + 1]:
        return f"{where}: YAML does not allow tabs for indentation; use spaces"
    problem = str(getattr(error, "problem", "") or "syntax error")
    return f"{where}: not valid YAML: {problem}"
