"""Find the tests near to a change: those of the rooms that import what changed since main."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

PACKAGES = ("dlctl", "learner", "psrv", "search")
OTHER_TESTS = {
    "templates/frameworks": [
        "tests/golden",
        "tests/unit/dlctl/frameworks",
        "tests/unit/frameworks",
    ],
    "templates/stores": ["tests/contract", "tests/unit/learner"],
    "templates": ["tests/golden", "tests/contract/test_launchers.py"],
    **dict.fromkeys(("docs", "README.md", "CONTRIBUTING.md"), ["tests/unit/docs"]),
    "benchmarks": ["tests/unit/benchmarks"],
    "site_configs": ["tests/unit/dlctl/sites"],
    "tests/golden": ["tests/golden"],
    "tests/run.py": ["tests/unit/suite"],
    "tests/mutants.py": ["tests/unit/suite"],
}
"""The tests of what is no module, the longest name first. Whatever else changes is near to all."""
HELPERS = r"tests/(support|cluster)/(\w+)\.py"


def tests(repository: Path) -> list[str]:
    """Return folders and files of tests, relative to `repository`, for what changed since main."""
    files = changed(repository)
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    modules = {module_of(file) for file in files if file.split("/")[0] in PACKAGES}
    rooms = {room_of(module) for module in modules}
    rooms |= {
        room_of(importer)
        for module in modules & graph.modules
        for importer in graph.find_modules_that_directly_import(module)
    }
    found = {f"tests/unit/{room.replace('.', '/')}" for room in rooms}
    found |= {f"tests/unit/{room.replace('.', '/test_')}.py" for room in rooms}
    found |= {each for file in files for each in _tests_of_other(file)}
    helpers = {match[2] for file in files if (match := re.fullmatch(HELPERS, file))}
    found |= set(naming(repository, modules | helpers))
    return sorted(each for each in found if (repository / each).exists())


def _tests_of_other(file: str) -> list[str]:
    if re.fullmatch(r"tests/.*/test_\w+\.py", file):
        return [file]
    if Path(file).name == "conftest.py":
        return [str(Path(file).parent)]
    if file.split("/")[0] in PACKAGES or re.fullmatch(HELPERS, file):
        return []
    known = (tests for name, tests in OTHER_TESTS.items() if f"{file}/".startswith(f"{name}/"))
    return next(known, ["tests"])


def changed(repository: Path) -> list[str]:
    """Return the files that differ from main; on main itself, from its remote's.

    Raises:
        SystemExit: git can't say.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"git can't say what has changed ({done.stderr.strip()}): run `make test`")
        return [each for each in done.stdout.replace("\n", "\0").split("\0") if each]

    refs = git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes")
    on_main = git("rev-parse", "--abbrev-ref", "HEAD") == ["main"]
    bases = ["origin/main"] if on_main else ["main", "origin/main"]
    base = next((git("merge-base", "HEAD", each)[0] for each in bases if each in refs), "HEAD")
    new = git("ls-files", "-z", "--others", "--exclude-standard")
    return sorted({*git("diff", "-z", "--no-renames", "--name-only", base), *new})


def module_of(file: str) -> str:
    """Return the module in a file: `dlctl/plan/decide.py` → `dlctl.plan.decide`.

    For any other file of a package, it is the folder's.
    """
    file = file if file.endswith(".py") else str(Path(file).parent)
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room_of(module: str) -> str:
    """Return the room of a module: the first two names."""
    return ".".join(module.split(".")[:2])


def naming(repository: Path, modules: Iterable[str]) -> list[str]:
    """Return the test files that import one of the modules themselves."""
    wanted = set(modules)
    found = []
    for file in sorted((repository / "tests").rglob("test_*.py")):
        text, imports = file.read_text(), set[str]()
        if not any(each.rpartition(".")[2] in text for each in wanted):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imports |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        if wanted & imports:
            found.append(str(file.relative_to(repository)))
    return found
