"""Find the tests near to a change: those of the rooms that import what changed since main."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import grimp

PACKAGES = ("dlctl", "learner", "psrv", "search")
OTHER_TESTS = {
    "templates": ["tests/golden", "tests/contract/test_launchers.py"],
    **dict.fromkeys(("docs", "README.md", "CONTRIBUTING.md"), ["tests/unit/docs"]),
    "benchmarks": ["tests/unit/benchmarks"],
    "site_configs": ["tests/unit/dlctl/sites"],
}
"""The tests of what is no module; a page or a template may also be named by a test of its room."""


def tests(repository: Path) -> list[str]:
    """Return folders and files of tests, relative to `repository`, for what changed since main."""
    files = changed(repository)
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    modules = {module for file in files if (module := module_of(file)) in graph.modules}
    rooms = {room_of(module) for module in modules}
    rooms |= {
        room_of(importer)
        for module in modules
        for importer in graph.find_modules_that_directly_import(module)
    }
    found = {file for file in files if re.fullmatch(r"tests/.*/test_\w+\.py", file)}
    found |= {f"tests/unit/{room.replace('.', '/')}" for room in rooms}
    found |= {f"tests/unit/{room.replace('.', '/test_')}.py" for room in rooms}
    found |= {each for file in files for each in OTHER_TESTS.get(file.split("/")[0], [])}
    found |= {str(Path(file).parent) for file in files if Path(file).name == "conftest.py"}
    helpers = {Path(f).stem for f in files if f.startswith(("tests/support/", "tests/cluster/"))}
    found |= set(naming(repository, modules | helpers))
    return sorted(each for each in found if (repository / each).exists())


def changed(repository: Path) -> list[str]:
    """Return the files that differ from main; on main itself, from its remote's."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode == 0 else []

    on_main = git("rev-parse", "--abbrev-ref", "HEAD") == ["main"]
    base = git("merge-base", "HEAD", "origin/main" if on_main else "main") or ["HEAD"]
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", base[0]), *new})


def module_of(file: str) -> str:
    """Return the module in a file: `dlctl/plan/decide.py` → `dlctl.plan.decide`."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room_of(module: str) -> str:
    """Return the room of a module: the first two names."""
    return ".".join(module.split(".")[:2])


def naming(repository: Path, modules: Iterable[str]) -> list[str]:
    """Return the test files that import one of the modules themselves."""
    wanted = set(modules)
    found = []
    for file in sorted((repository / "tests").rglob("test_*.py")):
        imports: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imports |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        if wanted & imports:
            found.append(str(file.relative_to(repository)))
    return found
