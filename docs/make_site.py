"""Make the pages as a site with a search box, in build/site: python docs/make_site.py.

The groups are those of the README. Every page keeps its place, so that links work as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build/site-pages"
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
_GROUP = re.compile(r"^- \*\*(.+?):?\*\*:? (.*\]\(.*)$", re.MULTILINE)


def linked(page: Path) -> set[Path]:
    """Return the files of the repository that a page links to."""
    found = {(page.parent / target).resolve() for target, _ in _LINK.findall(page.read_text())
             if "://" not in target}  # fmt: skip
    return {path for path in found if path.is_file() and path.is_relative_to(ROOT)}


def bring() -> None:
    """Copy the README, and all that it and the pages below link to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    todo, known = [ROOT / "README.md"], set[Path]()
    while todo:
        page = todo.pop()
        if page in known:
            continue
        known.add(page)
        target = PAGES / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, target)
        todo += linked(page) if page.suffix == ".md" else ()


def navigation() -> list[object]:
    """Return the groups of the README's last list, with their pages."""
    text = (ROOT / "README.md").read_text().partition("## Read on")[2]
    groups: list[object] = [{"dlctl": "README.md"}]
    for name, line in _GROUP.findall(text):
        pages = re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)\)", line)
        groups.append({name: [{title.capitalize(): path} for title, path in pages]})
    return groups


def main() -> int:
    """Make the site; any warning is an error."""
    bring()
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    settings |= {"nav": navigation(), "docs_dir": str(PAGES), "site_dir": str(ROOT / "build/site")}
    made = ROOT / "build/mkdocs.yml"
    made.write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(made)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # it advertises its successor
    return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
