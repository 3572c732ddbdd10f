"""Turn pydantic's errors into sentences: place, key, what was seen, what is allowed."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from dlctl.errors import in_words
from dlctl.yaml_source import Document, Trail

_LISTED = " Allowed: "
"""What is before the keys or words that are allowed."""

_OTHER_WORDS = {word: way for way, words in {
    "write framework.command": "cmd command entrypoint run script",
    "write learners": "ntasks num_workers processes tasks workers",
    "write time": "time_limit timeout walltime",
    "it belongs to the site, under environment in its file (docs/sites.md)":
        "conda container image modules python setup venv",
    "write requirements": "dependencies packages pip",
    "write data_stores, or let your program read a path of the nodes":
        "data dataset datasets inputs",
    "write notify.email": "email mail mail_user",
    "a sweep is `dlctl submit --sweep grid.yml`": "grid matrix sweep",
    "write scheduler.partition": "queue",
    "write name": "job_name",
    "gpus, cpus, memory and time stand at the top": "resources",
    "tags are given with `dlctl submit --tag WORD`": "tags",
}.items() for word in words.split()}  # fmt: skip
"""Keys of other tools, each with its way here."""


def dotted(trail: Trail) -> str:
    """Return `framework.arguments.lr` or `data_stores[0].id`."""
    text = ""
    for step in trail:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def sentences(
    error: ValidationError, model: type[BaseModel], document: Document, options: Mapping[Trail, str]
) -> list[str]:
    """Return one line for each error, in the order of the file."""
    lines = []
    for item in error.errors(include_url=False, include_context=True):
        trail = _real_trail(item["loc"], document.data, item["type"])
        if key := item.get("ctx", {}).get("key"):  # of a contradiction: the key to correct
            trail += (key,)
        text = _sentence(item, trail, model, document.data)
        is_key = item["type"] in ("extra_forbidden", "value_error", "contradiction", "model_type")
        where = place(document, trail, options, key=is_key)
        if item["type"] == "extra_forbidden" and len(trail) == 1:
            text = _moved(str(trail[0]), model, options.get(trail) == "--set", document) or text
        lines.append((document.order(trail), f"{named(where, trail)}: {text}"))
    return list(_listed_once(line for _, line in sorted(lines, key=lambda pair: pair[0])))


def _listed_once(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines; what is allowed is listed once, not for each unknown key of one place."""
    listed: set[str] = set()
    for line in lines:
        what, _, allowed = line.partition(_LISTED)
        if allowed and allowed in listed:
            yield what if what.endswith("?") else f"{what}{_LISTED}as above"
        else:
            yield line
        listed.add(allowed)


def named(where: str, trail: Trail) -> str:
    """Return the place and the key; an option such as --time names both."""
    return where if where == f"--{dotted(trail).replace('_', '-')}" else f"{where}: {dotted(trail)}"


def place(
    document: Document, trail: Trail, options: Mapping[Trail, str], *, key: bool = False
) -> str:
    """Return the option that set a value, else the file, line and column."""
    for end in range(len(trail), 0, -1):
        if trail[:end] in options:
            return options[trail[:end]]
    if trail not in document.key_marks:
        for made, option in options.items():
            if made[: len(trail)] == trail and trail:
                return option
    return document.where(trail, key=key)


def _real_trail(location: Iterable[str | int], data: Any, kind: str) -> Trail:
    """Return the location without pydantic's own steps (a union's tag)."""
    steps, trail = list(location), []
    for position, step in enumerate(steps):
        is_last_missing = position == len(steps) - 1 and kind in ("missing", "extra_forbidden")
        if _has(data, step):
            data = data[step]
        elif not is_last_missing:
            continue
        trail.append(step)
    return tuple(trail)


def _has(data: Any, step: str | int) -> bool:
    if isinstance(data, dict):
        return step in data
    return isinstance(data, list) and isinstance(step, int) and step < len(data)


def _sentence(item: Any, trail: Trail, model: type[BaseModel], data: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return unknown_key(str(trail[-1]), allowed_keys(model, trail[:-1]))
    text = shown(_at(data, trail), trail)
    if kind in ("dict_type", "model_type") and (keys := allowed_keys(model, trail)):
        return f"{in_words(item, text)}.{_LISTED}{', '.join(keys)}"
    if kind == "literal_error":
        words = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return f"{text} is unknown{_meant(str(_at(data, trail)), words)}{_LISTED}{', '.join(words)}"
    return in_words(item, text)


def _moved(key: str, model: type[BaseModel], is_option: bool, document: Document) -> str:
    """Return where a key of the top belongs: into a section, or to the program's arguments."""
    if words := _OTHER_WORDS.get(key.lower()):
        return f"unknown key; {words}"
    sections = [name for name in allowed_keys(model, ()) if key in allowed_keys(model, (name,))]
    if sections:
        words = " or ".join(f"'{name}.{key}'" for name in sections)
        return f"unknown key; did you mean {words}?"
    if is_option and not difflib.get_close_matches(key.lower(), allowed_keys(model, ()), 1, 0.55):
        command = _at(document.data, ("framework", "command"))
        way = f"framework.arguments.{key}" if command is None else (
            f"written into the command: --set 'framework.command={command} --{key} …'"
        )  # fmt: skip
        return f"unknown key; an argument of your job is {way}, other keys are in docs/manifest.md"
    return ""


def unknown_key(key: str, allowed: list[str]) -> str:
    """Return the sentence for an unknown key."""
    return f"unknown key{_meant(key, allowed)}{_LISTED}{', '.join(allowed)}"


def _meant(word: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(word.lower()[:80], allowed, 1, 0.55)
    return f"; did you mean {near[0]!r}?" if near else "."


def shown(value: Any, trail: Trail) -> str:
    """Return a value for a message, but never a possible credential."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "an empty value"
    if "connection" in trail or trail[:1] == ("env",):
        return "this value"
    text = getattr(value, "text", value)
    text = str(text).lower() if isinstance(text, bool) else str(text)
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _at(data: Any, trail: Trail) -> Any:
    for step in trail:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def allowed_keys(model: type[BaseModel], trail: Trail) -> list[str]:
    """Return the keys that the manifest allows at a place."""
    of_user, current = False, typing.cast("Any", model)
    for step in trail:
        field = current.model_fields.get(step) if current is not None else None
        of_user = field is not None and "dict[" in str(field.annotation)
        if field is not None:  # else a key that the user chose, as in env
            current = _model_in(field.annotation)
    if current is None or of_user:
        return []
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
