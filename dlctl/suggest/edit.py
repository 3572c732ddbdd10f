"""Change single values of a manifest's text: comments, order and everything else stay. Pure.

A value is replaced where the YAML parser found it. A key that is missing is added behind one that
goes before it in the docs and has its value on the same line. What comes out is read again: unless
it says exactly what was meant, nothing is changed.
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from dlctl.errors import ManifestError
from dlctl.manifest.model import Manifest
from dlctl.manifest.overrides import put
from dlctl.yaml_source import Document, Trail, YamlError, load_bytes, parse_scalar, plain


def edited(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a manifest with other values, by their keys with dots.

    Raises:
        ManifestError: one can't be changed without a change of something else.
        YamlError: the text is no manifest.
    """
    for key, value in values.items():
        text = _with(text, tuple(key.split(".")), value)
    return text


def difference(before: str, after: str, name: str) -> str:
    """Return the changed lines alone, as a unified diff: others may hold a password."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, name, n=0
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _with(text: str, trail: Trail, value: str) -> str:
    document = load_bytes(text.encode(), "manifest")
    own = tuple(_own_key(document, trail[:1])) + trail[1:]
    wanted = copy.deepcopy(document.data)
    put(wanted, own, parse_scalar(value))
    for change in (_replaced, _added):
        after = change(text, document, own, value)
        if after is not None and _says(after, wanted):
            return after
    shown = ".".join(map(str, trail))
    raise ManifestError(
        f"{shown} can't be changed in place",
        hint=f"write `{shown}: {value}` into the manifest yourself, where its other keys are",
    )


def _own_key(document: Document, trail: Trail) -> Trail:
    """Return a key at the top as it is written: `Memory` counts as `memory`."""
    same = [key for key in document.data if str(key).lower() == trail[0]]
    return (same[0],) if same else trail


def _says(text: str, wanted: Any) -> bool:
    try:
        return bool(plain(load_bytes(text.encode(), "manifest").data) == plain(wanted))
    except YamlError:
        return False


def _replaced(text: str, document: Document, trail: Trail, value: str) -> str | None:
    event = _scalar_at(text, document, trail)
    if event is None:
        return None
    begin, end, style = event.start_mark.index, event.end_mark.index, _style(event)
    written = f"{style}{value}{style}" if style in ("'", '"') else value
    space = "" if begin != end else " "  # `memory:` with nothing behind it
    return f"{text[:begin]}{space}{written}{text[end:]}"


def _added(text: str, document: Document, trail: Trail, value: str) -> str | None:
    """Add a key to the innermost mapping on the way that is there; further ones in braces."""
    depth = len(trail) - 1
    while depth and not isinstance(_at(document.data, trail[:depth]), dict):
        depth -= 1
    parent, rest = trail[:depth], trail[depth:]
    for key in _before_first(_at(document.data, parent), str(rest[0])):
        event = _scalar_at(text, document, (*parent, key))
        named = document.key_marks.get((*parent, key))
        if event is None or named is None or event.start_mark.line != event.end_mark.line:
            continue
        end = event.end_mark.index
        if _is_flow(text, document.value_marks[parent]):
            pair = _pair(rest, value, quoted=_style(event) == '"')
            return f"{text[:end]}, {pair}{text[end:]}"
        newline = "\r\n" if "\r\n" in text else "\n"
        at = text.find("\n", end)
        head, tail = (text, "") if at < 0 else (text[:at].removesuffix("\r"), text[at + 1 :])
        indent, pair = " " * (named[1] - 1), _pair(rest, value, quoted=False)
        return f"{head}{newline}{indent}{pair}{newline}{tail}"
    return None


def _before_first(keys: Iterable[str], key: str) -> list[str]:
    """Return the keys of a mapping: first those that the docs name before a key, the last first."""
    place = {name: number for number, name in enumerate(Manifest.model_fields)}
    at = place.get(key, 0)
    places = {each: place.get(each.lower(), at) for each in keys}
    before = [each for each in places if places[each] < at]
    return [*sorted(before, key=places.__getitem__, reverse=True),
            *(each for each in places if each not in before)]  # fmt: skip


def _pair(trail: Trail, value: str, *, quoted: bool) -> str:
    """Return `key: value`, of several keys in braces."""
    key, rest = str(trail[0]), trail[1:]
    inner = _pair(rest, value, quoted=quoted) if rest else ""
    if quoted:
        is_text = isinstance(parse_scalar(value), str)
        body = f"{{{inner}}}" if rest else json.dumps(value) if is_text else value
        return f"{json.dumps(key)}: {body}"
    return f"{key}: {{{inner}}}" if rest else f"{key}: {value}"


def _at(data: Any, trail: Trail) -> Any:
    for key in trail:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _scalar_at(text: str, document: Document, trail: Trail) -> Any:
    """Return the parser's event of a single value or an alias; None if there is none."""
    if isinstance(_at(document.data, trail), (dict, list)):
        return None  # which may begin where its first key does
    mark = document.value_marks.get(trail)
    found = (event for event in _events_at(text, mark)
             if isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent)))  # fmt: skip
    return next(found, None)


def _style(event: Any) -> str:
    """Return how a value is quoted."""
    return getattr(event, "style", None) or ""


def _is_flow(text: str, mark: tuple[int, int]) -> bool:
    """Return whether the mapping that begins there stands in braces."""
    return any(isinstance(event, yaml.MappingStartEvent) and event.flow_style
               for event in _events_at(text, mark))  # fmt: skip


def _events_at(text: str, mark: tuple[int, int] | None) -> Iterator[Any]:
    """Yield what the parser finds at a line and a column, from 1."""
    event: Any
    for event in yaml.parse(text, Loader=yaml.SafeLoader) if mark else ():
        if (event.start_mark.line + 1, event.start_mark.column + 1) == mark:
            yield event
