"""Draw the layers of the three packages, and list their rooms: python docs/make_architecture.py.

The layers come from import-linter's contracts in pyproject.toml, so the picture shows what `make
check` enforces; a test compares it with what this program makes. The list, whose words are the
docstrings', is not kept in the repository.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found,no-redef,unused-ignore]

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/layers.svg"
PAGE = ROOT / "build/modules.md"
HEAD = """\
# Rooms and modules

Made by `make docs` from the docstrings: change those, not this page. A room may import the rooms
below it and never one above; [the picture](../docs/layers.svg) shows the order.
"""
SIDES = {
    "dlctl": "login side", "learner": "node side", "psrv": "node side", "search": "node side",
}  # fmt: skip
COLUMN, GAP, ROW, LEFT, TOP = 330, 40, 62, 30, 84
_FACES = {"chunks", "sources", "cursor_file", "rules", "__main__", "localqueue", "train", "client"}
"""Entry points and public names: drawn lighter than rooms."""


def layers() -> dict[str, list[list[str]]]:
    """Return each package's layers, top first; a layer is a list of rooms and root modules."""
    config: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        contract["containers"][0]: [layer.split(" | ") for layer in contract["layers"]]
        for contract in config["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    }


def picture() -> str:
    """Return the layers as an SVG: a column for each package."""
    columns = layers()
    height = TOP + ROW * max(len(rows) for rows in columns.values()) + 70
    width = LEFT * 2 + COLUMN * len(columns) + GAP * (len(columns) - 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif">'
        "<title>The layers of dlctl, learner, psrv and search</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (package, rows) in enumerate(columns.items()):
        parts += _column(LEFT + number * (COLUMN + GAP), package, rows)
    note = (
        "A room imports rooms below it, never one above; rooms side by side don't know each other. "
        "learner also imports psrv; the node side imports dlctl.contract alone of dlctl."
    )
    parts.append(_text(width / 2, height - 22, note, 13, "#475569"))
    return "\n".join(parts) + "\n</svg>\n"


def _column(x: float, package: str, rows: list[list[str]]) -> Iterator[str]:
    yield _text(x + COLUMN / 2, 36, f"{package}/", 19, "#0f172a", bold=True)
    yield _text(x + COLUMN / 2, 58, SIDES[package], 13, "#475569")
    for index, row in enumerate(rows):
        y = TOP + index * ROW
        if index:
            middle = x + COLUMN / 2
            yield (
                f'<path d="M{middle} {y - 15} v10 m-4 -5 l4 5 l4 -5" fill="none" '
                'stroke="#94a3b8" stroke-width="1.5"/>'
            )
        box = (COLUMN - 6 * (len(row) - 1)) / len(row)
        for place, name in enumerate(row):
            yield from _box(x + place * (box + 6), y, box, name, crowded=len(row) > 3)


def _box(x: float, y: float, width: float, name: str, *, crowded: bool) -> Iterator[str]:
    fill, stroke = ("#f1f5f9", "#94a3b8") if name in _FACES else ("#dbeafe", "#2563eb")
    if name == "contract":
        fill, stroke = "#dcfce7", "#15803d"
    yield (
        f'<rect x="{x:g}" y="{y}" width="{width:g}" height="42" rx="6" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.2"/>'
    )
    words = name.split("_") if crowded and len(name) > 9 and name not in _FACES else [name]
    size = 10 if width < 64 else 11 if crowded else 13
    for line, word in enumerate(words):
        middle = y + 26 + (line - (len(words) - 1) / 2) * (size + 2)
        yield _text(x + width / 2, middle - 1, word, size, "#0f172a")


def _text(x: float, y: float, text: str, size: int, color: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}"{weight} text-anchor="middle" '
        f'fill="{color}">{escape(text)}</text>'
    )


def page() -> str:
    """Return the page that lists each room with its modules."""
    parts = [HEAD]
    for package, rows in layers().items():
        parts.append(f"\n## `{package}/`, the {SIDES[package]}\n\n{_doc(ROOT / package)}\n")
        for name in (name for row in rows for name in row):
            path = ROOT / package / name
            if path.is_dir():
                parts.append(f"\n### `{package}/{name}/`\n\n{_doc(path)}\n\n{_modules(path)}")
        parts.append(f"\n### `{package}/*.py`\n\n{_modules(ROOT / package)}")
    return "".join(parts)


def _modules(folder: Path) -> str:
    lines = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".c":
            first = path.read_text(encoding="utf-8").splitlines()[0].strip("/* ")
            lines.append(f"| `{path.name}` | {first} |")
        elif path.suffix == ".py" and path.name != "__init__.py":
            lines.append(f"| `{path.name}` | {_first_line(path)} |")
    return "\n".join(["| module | what it is |", "|---|---|", *lines]) + "\n"


def _doc(folder: Path) -> str:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n    ")[0].strip()


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")
