"""A pytest plugin: which tests a run takes, and which have passed or failed.

tests/run.py says by variables what to leave out and where to write; without them it does nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

SHARD_VARIABLE = "DLCTL_TEST_SHARD"
"""`2/4`: take the second quarter of the tests."""
SKIP_VARIABLE = "DLCTL_TEST_PASSED_BEFORE"
"""A file with the tests that are left out, because they have passed on this very tree."""
PASSED_VARIABLE = "DLCTL_TEST_PASSED"
"""A file that gets a line for each test that passes; several runs may append to it."""
FAILED_VARIABLE = "DLCTL_TEST_FAILED"
"""A file that gets a line for each test that fails."""


def name_of(nodeid: str) -> str:
    """Return a test's name without the group that pytest-xdist adds to it."""
    head, bracket, rest = nodeid.rpartition("]")
    return head + bracket + rest.partition("@")[0]


def is_in_shard(group: str, shard: str) -> bool:
    """Return whether a test belongs to shard `K/N`; tests of one group stay together."""
    number, _, count = shard.partition("/")
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % int(count) == int(number) - 1


def _group(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    return str(marker.args[0]) if marker and marker.args else name_of(item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    before = Path(os.environ[SKIP_VARIABLE]).read_text() if SKIP_VARIABLE in os.environ else ""
    shard, passed = os.environ.get(SHARD_VARIABLE), set(before.splitlines())
    left_out = [
        item
        for item in items
        if name_of(item.nodeid) in passed or (shard and not is_in_shard(_group(item), shard))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


class Book:
    """Writes down which tests have passed and which have failed, while they run."""

    def __init__(self) -> None:
        self._bad: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = name_of(report.nodeid)
        if report.failed and name not in self._bad:
            self._bad.add(name)
            _append(FAILED_VARIABLE, name)
        elif report.when == "teardown" and name not in self._bad:
            _append(PASSED_VARIABLE, name)


def _append(variable: str, line: str) -> None:
    if variable in os.environ:
        with Path(os.environ[variable]).open("a") as file:
            file.write(line + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Book(), "dlctl-book")
