"""The login side on Windows and macOS: no `fcntl`, no `fork`, no `/proc`, other signal numbers.

Each test loads dlctl afresh in a process of its own, which takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from repository import REPOSITORY, SUPPORT

ONLY_UNIX = {"dlctl.contract.ground.interfaces", "dlctl.terminal.screen"}
"""What runs on nodes only, and what `output.has_whole_screen` keeps from being loaded."""
IMPORTS = """
import importlib, pkgutil, no_unix
no_unix.pytest_configure()
import dlctl
for module in pkgutil.walk_packages(dlctl.__path__, "dlctl."):
    if module.name != "dlctl.__main__":
        try:
            importlib.import_module(module.name)
        except (ImportError, AttributeError) as error:
            print(module.name)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), str(REPOSITORY)])}
    return subprocess.run([sys.executable, *arguments], env=env, cwd=REPOSITORY, text=True,
                          capture_output=True, timeout=300)  # fmt: skip


def test_every_module_of_the_login_side_loads_without_unix():
    done = run("-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == ONLY_UNIX


@pytest.mark.parametrize("folder", [
    "sites",
    *(pytest.param(name, marks=pytest.mark.long)
      for name in ("request", "manifest", "plan", "series", "test_record.py")),
])  # fmt: skip
def test_the_unit_tests_pass_without_unix(folder):
    done = run("-m", "pytest", "-q", "-p", "no_unix", "-p", "no:cacheprovider", "-x",
               "-k", "not limited_by_this_machine", f"tests/unit/dlctl/{folder}")  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
