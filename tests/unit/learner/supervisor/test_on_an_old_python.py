"""Supervisor and local queue run on a container's host: on Python 3.8, with its standard library.

What they import is read from the source, and compared with what later Pythons added. Where a
Python 3.8 or 3.9 is installed, it imports all of that, and reads a record.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import REPOSITORY

OURS = ("dlctl", "learner", "psrv")
ENTRIES = ("learner.supervisor.__main__", "learner.localqueue", "dlctl.contract.ground.outside")
OPTIONAL = {"torch": "learner.frameworks.pytorch", "watchdog": "learner.supervisor.control"}
"""Imported by functions that the supervisor does not call, or does without."""
LATER = {"removeprefix", "removesuffix", "is_relative_to", "readlink", "cache", "pairwise", "lcm",
         "bit_count", "randbytes", "UnionType", "hardlink_to", "with_stem",
         "TypeAlias", "ParamSpec", "Concatenate", "UTC", "StrEnum", "anext", "aiter"}  # fmt: skip
"""Names of the standard library that Python 3.9, or a later one, has brought."""
KEYWORDS = {("zip", "strict"), ("dataclass", "slots"), ("dataclass", "kw_only")}
ALIASED = {"list", "dict", "tuple", "set", "frozenset", "type", "Callable", "Iterable", "Iterator",
           "Mapping", "Sequence"}  # fmt: skip


def path_of(module):
    base = REPOSITORY.joinpath(*module.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()), None)


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def closure():
    """Return the source of each module that the entries may import, and the packages of others."""
    trees, foreign, todo = {}, {}, list(ENTRIES)
    while todo:
        module = todo.pop()
        parts = module.split(".")
        if parts[0] not in OURS:
            continue
        for each in (".".join(parts[:n]) for n in range(1, len(parts) + 1)):
            if each in trees or not (path := path_of(each)):
                continue
            trees[each] = ast.parse(path.read_text(), feature_version=(3, 8))
            names = list(imported(trees[each]))
            foreign.update((name.split(".")[0], each) for name in names)
            todo += names
    return trees, {k: v for k, v in foreign.items() if k not in {*OURS, *sys.stdlib_module_names}}


TREES, FOREIGN = closure()


def test_only_the_standard_library_is_needed():
    assert FOREIGN == OPTIONAL


def test_nothing_is_used_that_later_pythons_brought():
    found = []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            later = (
                isinstance(node, ast.Attribute)
                and node.attr in LATER
                and (not isinstance(node.value, ast.Name) or node.value.id != "os")
            )
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                later = later or any((called, word.arg) in KEYWORDS for word in node.keywords)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
                later = isinstance(node.left, ast.Dict) or isinstance(node.right, ast.Dict)
            if later:
                found.append(f"{module}:{node.lineno}: {ast.unparse(node)[:60]}")
        for node in tree.body:  # an alias is evaluated as the module is imported
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(value, ast.Subscript) and ast.unparse(value.value) in ALIASED:
                found.append(f"{module}:{node.lineno}: {ast.unparse(node)[:60]}")
    assert not found, found


FOLDERS = (*Path("/root/.pyenv/versions").glob("3.[89].*/bin"), Path("/usr/bin"),
           Path("/usr/local/bin"))  # fmt: skip
OLD = [str(path) for folder in FOLDERS for path in folder.glob("python3.[89]")]
READS = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
from dlctl import contract
from dlctl.contract.files import from_json, to_json
text = to_json(contract.Verdict(1, "7", contract.State.FAILED, "it failed"))
assert to_json(from_json(contract.Verdict, text)) == text
print(sys.version_info[:2])
"""


@pytest.mark.skipif(not OLD, reason="this machine has no Python 3.8 or 3.9")
@pytest.mark.parametrize("python", OLD)
def test_an_old_python_imports_all_of_it(python):
    modules = sorted(TREES)
    done = subprocess.run(
        [python, "-c", READS, *modules], cwd=REPOSITORY, text=True, capture_output=True,
        env={"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.match(r"\(3, [89]\)", done.stdout)
