"""Read and write records as JSON."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import functools
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


class ContractError(ValueError):
    """A record in the job directory can't be understood."""


def to_json(record: Any) -> str:
    """Return a record as JSON text, one trailing newline."""
    text = json.dumps(dataclasses.asdict(record), indent=2, ensure_ascii=False) + "\n"
    # A file name that is not UTF-8 holds lone surrogates, which JSON writes as escapes.
    return text.encode("utf-8", "backslashreplace").decode()


def from_json(cls: type[R], text: str | bytes) -> R:
    """Return the record that `text` holds. Unknown fields (a newer writer) are ignored.

    Raises:
        ContractError: the text is not JSON, or a field is missing or of another type.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # of decoding, too
        raise ContractError(f"{cls.__name__}: not JSON: {error}") from error
    return from_plain(cls, value)


def understood(cls: type[R], text: str | bytes | None) -> R | None:
    """Return what `from_json` does; None without a text, or for one that another version wrote."""
    with contextlib.suppress(ContractError):
        return None if text is None else from_json(cls, text)
    return None


def from_plain(cls: type[R], value: Any) -> R:
    """Return the record that a JSON object holds, as `from_json` does.

    Raises:
        ContractError: a field is missing or of another type.
    """
    return typing.cast(R, _decode(cls, value, cls.__name__))


def _decode(kind: Any, value: Any, where: str) -> Any:
    if type(value) is kind or kind is Any:  # JSON's true is no number
        return value
    origin, args = _shape(kind)
    if origin in _UNIONS:
        if value is None and type(None) in args:
            return None
        return _decode(next(a for a in args if a is not type(None)), value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), value, where)
    if origin is list and isinstance(value, list):
        return [_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(value)
        except ValueError:
            raise ContractError(f"{where}: {value!r} is no {kind.__name__}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise ContractError(f"{where}: {value!r} is not of the type {kind}")


@functools.lru_cache(maxsize=None)
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


@functools.lru_cache(maxsize=None)
def _fields(cls: type) -> list[tuple[str, Any, bool]]:
    """Return each field's name, its type, and whether it has no default."""
    hints, none = _hints(cls), dataclasses.MISSING
    return [(item.name, hints[item.name], item.default is none and item.default_factory is none)
            for item in dataclasses.fields(cls)]  # fmt: skip


def _hints(cls: type) -> dict[str, Any]:
    """Return the type of each field; also in Python 3.8, whose types know no `X | Y`, `list[X]`."""
    if sys.version_info >= (3, 10):
        return typing.get_type_hints(cls)
    hints: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        known = {**vars(sys.modules[each.__module__]), **_GENERIC}
        for name, text in vars(each).get("__annotations__", {}).items():
            tree = _Older().visit(ast.parse(text, mode="eval"))
            code = compile(ast.fix_missing_locations(tree), "<types>", "eval")
            hints[name] = eval(code, known)  # noqa: S307 - our own source
    return hints


_GENERIC = {"list": typing.List, "dict": typing.Dict, "tuple": typing.Tuple, "Union": typing.Union}  # noqa: UP006


class _Older(ast.NodeTransformer):
    """Turns `X | Y` into `Union[X, Y]`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:  # noqa: N802
        both = ast.Tuple([self.visit(node.left), self.visit(node.right)], ast.Load())
        whole = both if sys.version_info >= (3, 9) else ast.Index(both)
        return ast.Subscript(ast.Name("Union", ast.Load()), whole, ast.Load())


def _decode_record(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ContractError(f"{where}: {value!r} is no object")
    known: dict[str, Any] = {}
    for name, kind, is_needed in _fields(cls):
        if name in value:
            item = value[name]
            same = type(item) is kind  # most are, and a record has many
            known[name] = item if same else _decode(kind, item, f"{where}.{name}")
        elif is_needed:
            raise ContractError(f"{where}.{name} is missing")
    return cls(**known)


def read_record(cls: type[R], path: Path) -> R | None:
    """Return the record in a file, or None if the file does not exist."""
    try:
        return from_json(cls, path.read_bytes())
    except FileNotFoundError:
        return None


def readable_record(cls: type[R], path: Path) -> R | None:
    """Return the record in a file, or None if there is none that can be read now."""
    try:
        return read_record(cls, path)
    except (OSError, ContractError):
        return None
