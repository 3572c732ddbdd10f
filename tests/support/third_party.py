"""The environments of real frameworks, which `.ci/make-frameworks` makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from repository import REPOSITORY

OWN = REPOSITORY / ".venv/frameworks"
IN_CI = ("xgb",)
"""Light enough for each commit."""


def python_of(name: str, site: Any) -> Path:
    """Return the Python of an environment as a site's nodes see it; skip where there is none.

    DLCTL_FRAMEWORKS names another folder with such environments.
    """
    place = Path(os.environ.get("DLCTL_FRAMEWORKS", OWN))
    if not (place / name / "bin/python").exists():
        (pytest.fail if os.environ.get("CI") == "true" and name in IN_CI else pytest.skip)(
            f"there is no environment {place / name}: run `.ci/make-frameworks {place} {name}`"
        )
    if place == OWN and site.is_cluster:  # it does not see the clone, but .venv elsewhere
        place = site.python.parents[1] / "frameworks"
    return place / name / "bin/python"
