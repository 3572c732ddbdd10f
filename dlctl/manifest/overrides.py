"""The command line's overrides: put into the manifest's raw tree, then validated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from dlctl.errors import Misused
from dlctl.yaml_source import Trail, YamlError, load_bytes, parse_scalar

_SHAPE = ("learners", "nodes", "learners_per_node")
"""Two of them determine the third."""
_NO_PAIR = "not of the form KEY=VALUE, as in framework.arguments.lr=0.1"


@dataclass(frozen=True)
class Overrides:
    """The command line's overrides of a manifest, as they were typed."""

    learners: str | int | None = None
    nodes: str | int | None = None
    learners_per_node: str | int | None = None
    gpus: str | int | None = None
    cpus: str | float | None = None
    memory: str | None = None
    time: str | None = None
    partition: str | None = None
    set: tuple[str, ...] = ()
    """`KEY=VALUE` each, as in `framework.arguments.lr=0.1`."""


def overrides_of(options: Mapping[str, Any], values: Mapping[str, object]) -> Overrides:
    """Return the overrides that a program asks for.

    Args:
        options: By the names of the command line's options; None: not given.
        values: By the keys of the manifest, with dots.
    """
    options = {name: plain(each, name) for name, each in options.items()}
    pairs = (f"{key}={json.dumps(plain(each, key), ensure_ascii=False)}"
             for key, each in values.items())  # fmt: skip
    return Overrides(**options, set=tuple(pairs))


def plain(value: object, where: str = "the manifest") -> Any:
    """Return a value of a program as YAML has it: numbers of numpy as numbers, paths as text.

    Raises:
        Misused: it is anything else.
    """

    def changed(part: Any) -> object:
        if isinstance(part, PurePath):
            return str(part)
        if callable(listed := getattr(part, "tolist", None)):
            return listed()
        raise Misused(f"{where}: {part!r} is neither text, number, list nor dict")

    return json.loads(json.dumps(value, default=changed))


def apply(data: dict[str, Any], overrides: Overrides, problems: list[str]) -> dict[Trail, str]:
    """Put the command line's values into the raw tree; return which option set what."""
    options: dict[Trail, str] = {}
    follows = [name for name in _SHAPE if getattr(overrides, name) is None]
    if len(follows) == 1:
        data.pop(follows[0], None)
    for name in (*_SHAPE, "gpus", "cpus", "memory", "time"):
        value = getattr(overrides, name)
        if value is not None:
            data[name] = parse_scalar(str(value))
            options[(name,)] = f"--{name.replace('_', '-')}"
    if overrides.partition is not None:
        partition: Trail = ("scheduler", "partition")
        if not put(data, partition, parse_scalar(overrides.partition)):
            problems.append("--partition: `scheduler` in the manifest has no keys")
        options[partition] = "--partition"
    for text in overrides.set:
        key, separator, value = text.partition("=")
        key = key.strip()
        steps: Trail = tuple(int(s) if s.isdecimal() else s for s in key.split("."))
        problem = _set(data, steps, value) if separator and "" not in steps else _NO_PAIR
        if problem:
            problems.append(f"--set {key or repr(key)}: {problem.format(key=key)}")
        else:
            options[steps] = "--set"
    return options


def _set(data: dict[str, Any], steps: Trail, value: str) -> str:
    """Put one value into the tree; return what is wrong with it, or ""."""
    if not value.strip():
        return "a value is missing; {key}=null takes the value away, {key}='\"\"' is empty text"
    try:
        parsed = _parse_value(value)
    except YamlError:
        return "the list is not valid YAML; one such as [a, b] is allowed, or quote it: '[a'"
    if _holds_mapping(parsed):
        return "a list of single values is allowed; set a key within it with dots"
    return "" if put(data, steps, parsed) else "leads into a value that has no keys"


def _parse_value(text: str) -> Any:
    """Return what a YAML flow sequence, a quoted text or a plain scalar means.

    Raises:
        YamlError: the text begins like a sequence but is not valid YAML.
    """
    stripped = text.strip()
    if stripped[0] == "[":
        return load_bytes(stripped.encode(), "--set").data
    if stripped[0] in "'\"" and stripped[0] == stripped[-1] and len(stripped) > 1:
        try:
            quoted = load_bytes(stripped.encode(), "--set").data
        except YamlError:  # such as 'my program' --name 'x': text of a shell
            return text
        return quoted if isinstance(quoted, str) else text
    return parse_scalar(text)


def _holds_mapping(value: Any) -> bool:
    if isinstance(value, list):
        return any(_holds_mapping(item) for item in value)
    return isinstance(value, dict)


def put(data: Any, steps: Trail, value: Any) -> bool:
    """Set the value at the end of a trail, creating mappings on the way; return its success."""
    for step, following in zip(steps, (*steps[1:], None), strict=True):
        if isinstance(data, list):
            if not isinstance(step, int) or step >= len(data):
                return False
            step_key: Any = step
        elif isinstance(data, dict):
            step_key = str(step)
        else:
            return False
        if following is None:
            data[step_key] = value
        elif isinstance(data, dict) and data.get(step_key) is None:
            data[step_key] = {}
        data = data[step_key]
    return True
