"""A program of a user that imports dlctl, run beside a test's files."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from repository import REPOSITORY


def run_program(dlctl: Any, site: Any, text: str, *arguments: str) -> str:
    """Run a program whose default site is `site` to its good end; return what it printed."""
    path = dlctl.cwd.parent / "program.py"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(path), *arguments], cwd=dlctl.cwd, text=True,
        env=dlctl.env | {"DLCTL_SITE": site.name, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
