"""Write docs/job-directory-tables.md from dlctl.contract: python docs/make_job_directory.py.

The files come from the functions and constants that name them, the fields from the dataclasses, the
words from the docstrings; so do a table of recover.md and one of metrics.md, which stand between
`<!-- written by `make docs`: … -->` and `<!-- end -->`. A test compares.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).with_name("job-directory-tables.md")
HEAD = """\
# Files and fields of the job directory

`make docs` writes this page from the docstrings of `dlctl/contract/`: change those, not this page.
[The job directory](job-directory.md) says how the parts meet. `<n>` is the number of an attempt,
from 1; `<rank>` counts from 0; `<store>` is a data store's place in the manifest, from 0. Times are
Unix seconds on the writer's clock unless a field says otherwise; every `schema_version` is 1.
"""
_OF_FILES = ("names", "control", "notices.notice", "stores", "rehearsal", "log_times", "models")
_OF_SEARCHES = ("search.files",)
_OF_RECORDS = (
    "plan", "lifecycle", "control", "notices.notice", "notices.webhooks", "stores", "sent_files",
    "records", "measured.past", "rehearsal", "models", "search.spec", "search.files",
)  # fmt: skip
_VALUES = {
    "attempt": "<n>", "rank": "<rank>", "role": "<role>", "node": "<node>", "shard": "<shard>",
    "number": "<number>", "position": "<store>", "name": "<name>", "event": "<event>",
    "way": "<way>", "path": "<file>", "log": "<log>.log", "user": "<uid>", "sha256": "<sha256>",
    "training_id": "<training id>", "root": "<root>",
}  # fmt: skip
_NO_FILES = {
    "NEXT",
    "NOBODY",
    "BEGIN",
    "FRAMEWORK",
    "FIRST_BROKER",
    "FOLDER",
    "MODEL_PREFIX",
    "LOAD",
    "STORE",
    "PREFIX",
    "MARKER",
    "STORING",
    "TIMES_SUFFIX",
    "LATEST",
    "DATA_LISTINGS",
    "PULLED_FROM",
    "DAMAGED_BLOB",
}
"""Constants of these modules that name no file."""


def page() -> str:
    """Return the page."""
    parts = [
        HEAD,
        "## Files\n",
        _table(("path", "what"), _files(_OF_FILES)),
        "## Files of a search",
    ]
    parts += ["", _table(("path", "what"), _files(_OF_SEARCHES)), "## Records\n"]
    for module in _modules(_OF_RECORDS):
        parts += _records(module)
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """Return the text of each page with its tables as they have to be."""
    from dlctl.contract import states
    from dlctl.contract.measured import utilisation

    (kinds,) = (n for n in _body(states) if isinstance(n, ast.ClassDef) and n.name == "VerdictKind")
    rows = [(f"`{name.lower()}`", text) for name, text in _explained(kinds.body).items()]
    names = [
        (f"`{'gpu0_' if name.startswith('GPU_') else ''}{value}`", text)
        for name, text in _explained(_body(utilisation)).items()
        if isinstance(value := getattr(utilisation, name), str)
    ]
    return {
        PAGE: page(),
        **_with("recover.md", "VerdictKind", _table(("kind", "what is seen"), rows[1:])),
        **_with("metrics.md", "utilisation", _table(("name", "what"), names)),
    }


def _with(name: str, part: str, table: str) -> dict[Path, str]:
    """Return a page with another table in one of its parts."""
    path = PAGE.with_name(name)
    begin, end = f"<!-- written by `make docs`: {part} -->\n", "<!-- end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    return {path: f"{before}{begin}{table}{end}{rest.partition(end)[2]}"}


def _body(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def _modules(names: tuple[str, ...]) -> list[ModuleType]:
    return [importlib.import_module(f"dlctl.contract.{name}") for name in names]


def _files(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path and the meaning of each file that these modules name, in their order."""
    for module in _modules(names):
        body = _body(module)
        texts = _explained(body)
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                value, text = getattr(module, name), texts.get(name, "")
                if name not in _NO_FILES and isinstance(value, str) and text:
                    yield f"`{value}`", text
            elif isinstance(node, ast.FunctionDef) and (path := _path(getattr(module, node.name))):
                text = _line(ast.get_docstring(node) or "").removeprefix("Return ")
                yield f"`{path}`", text[:1].upper() + text[1:]


def _path(function: Any) -> str:
    """Return the path that a function names, with placeholders; empty for another function."""
    if function.__name__.startswith("_"):
        return ""
    needed = [each for each in inspect.signature(function).parameters if each != "source"]
    path = function(*(_VALUES[each] for each in needed)) if set(needed) <= set(_VALUES) else None
    is_path = isinstance(path, str) and ("/" in path or path.endswith(".times"))
    return str(path) if is_path else ""


def _records(module: ModuleType) -> Iterator[str]:
    """Yield a section for each dataclass of a module."""
    for node in _body(module):
        if isinstance(node, ast.ClassDef) and dataclasses.is_dataclass(getattr(module, node.name)):
            texts = _explained(node.body)
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
            rows = (_field(each, texts) for each in fields)
            yield f"### `{node.name}`\n\n{_line(ast.get_docstring(node) or '')}\n"
            yield _table(("field", "type", "meaning"), rows)


def _field(node: ast.AnnAssign, texts: dict[str, str]) -> tuple[str, ...]:
    name = ast.unparse(node.target)
    kind = ast.unparse(node.annotation).replace(" | ", " or ")
    return f"`{name}`", kind, texts.get(name, "")


def _explained(body: list[ast.stmt]) -> dict[str, str]:
    """Return the docstring literal behind each assignment, by name."""
    found = {}
    for node, after in zip(body, body[1:], strict=False):
        target: Any = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(target, ast.Name) and is_text and isinstance(after.value.value, str):  # type: ignore[attr-defined]
            found[target.id] = _line(after.value.value)  # type: ignore[attr-defined]
    return found


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
