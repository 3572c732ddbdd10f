"""Write the tables of docs/manifest.md from dlctl.manifest: python docs/make_manifest.py.

Between `<!-- written by `make docs`: SECTION -->` and `<!-- end -->` stands a row for each key of a
section, from the descriptions that the JSON Schema has, too. A test compares.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("manifest.md")
_PART = re.compile(r"(<!-- written by `make docs`: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page() -> str:
    """Return the page with its tables as they have to be."""
    from dlctl.manifest.model import Manifest

    schema = Manifest.model_json_schema()
    sections = {"Manifest": schema, **schema["$defs"]}

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}{_table(sections[found[2]], sections)}{found[3]}"

    return _PART.sub(part, PAGE.read_text(encoding="utf-8"))


def _table(section: dict[str, Any], sections: dict[str, Any]) -> str:
    required = section.get("required", ())
    lines = ["| key | value | default |", "|---|---|---|"]
    for name, key in section["properties"].items():
        kind = sections.get(key.get("$ref", "").rpartition("/")[2], {})
        text = str(key.get("description") or kind.get("description", "")).replace("|", "\\|")
        if text.endswith("; not used."):
            continue
        default = "required" if name in required else _default(key.get("default"))
        lines.append(f"| `{name}` | {text} | {default} |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is None or isinstance(value, dict):
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
