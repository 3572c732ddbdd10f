"""The environments of real frameworks, which `.ci/make-frameworks` makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from repository import REPOSITORY

OWN = REPOSITORY / ".venv/frameworks"
OF_TEST_ALL = ("xgb",)
"""Light enough for `make test-all`."""


def place() -> Path:
    """Return the folder with the environments; DLCTL_FRAMEWORKS names another one."""
    return Path(os.environ.get("DLCTL_FRAMEWORKS", OWN))


def python_of(name: str, site: Any) -> Path:
    """Return the Python of an environment as a site's nodes see it; skip where there is none."""
    here = place()
    if not (here / name / "bin/python").exists():
        (pytest.fail if os.environ.get("CI") == "true" and name in OF_TEST_ALL else pytest.skip)(
            f"there is no environment {here / name}: run `.ci/make-frameworks {here} {name}`"
        )
    if here == OWN and site.is_cluster:  # it does not see the clone, but .venv elsewhere
        here = site.python.parents[1] / "frameworks"
    return here / name / "bin/python"
