"""A pytest plugin: which tests a run takes, and which have passed or failed.

tests/run.py says by variables what to leave out and where to write; without them it does nothing.
"""

from __future__ import annotations

import hashlib
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
DEAR_RUNGS = ("cluster", "mpi", "rpc", "web")
"""Folders whose tests `make test` runs only where they are marked `first`."""
FIRST = "not slow and not long and not frameworks"
"""The marks of the first tier."""
TIER_VARIABLE = "DLCTL_TEST_TIER"
ONE_CLUSTER = ("first", "near")
"""Tiers whose tests share one cluster, which one worker has."""
SHARD_VARIABLE = "DLCTL_TEST_SHARD"
"""`2/4`: take the second quarter of the tests."""
SKIP_VARIABLE = "DLCTL_TEST_PASSED_BEFORE"
"""A file with the tests that are left out, because they have passed on this very tree."""
PASSED_VARIABLE = "DLCTL_TEST_PASSED"
"""A file that gets a line for each test that has run and passed; several runs may append to it."""
FAILED_VARIABLE = "DLCTL_TEST_FAILED"
"""A file that gets a line for each test that fails."""
FAULT = "the run itself"
"""Stands in that file for what is no test: something was left behind, a test is too dear, a file
can't be collected, a worker has crashed."""


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
    return str(marker.args[0]) if marker and marker.args else item.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses the cluster and what is slow, and leave out what this run is not to do.

    Before pytest-xdist looks for groups, and pytest for marks.
    """
    for item in items:
        if {"cluster", "cluster_site"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
        if not _is_of_the_first_tier(item):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("cluster") and os.environ.get(TIER_VARIABLE) in ONE_CLUSTER:
            item.add_marker(pytest.mark.xdist_group("cluster"))
    before = Path(os.environ[SKIP_VARIABLE]).read_text() if SKIP_VARIABLE in os.environ else ""
    shard, passed = os.environ.get(SHARD_VARIABLE), set(before.splitlines())
    left_out = {
        item
        for item in items
        if item.nodeid in passed
        or (shard and not is_in_shard(_group(item), shard))
        or ("COVERAGE_RUN" in os.environ and item.get_closest_marker("unmeasured"))
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_of_the_first_tier(item: pytest.Item) -> bool:
    """Return whether `make test` runs a test; on a dear rung only what is marked `first`."""
    if marker := item.get_closest_marker("first"):
        case = item.callspec.id if hasattr(item, "callspec") else ""
        return not marker.args or any(fnmatchcase(case, each) for each in marker.args)
    return item.path.relative_to(TESTS).parts[0] not in DEAR_RUNGS


class Book:
    """Writes down which tests have passed and which have failed, while they run."""

    def __init__(self) -> None:
        self._bad: set[str] = set()
        self._good: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = name_of(report.nodeid)
        if report.failed and name not in self._bad:
            self._bad.add(name)
            _append(FAILED_VARIABLE, name)
        elif report.when == "call" and report.passed:
            self._good.add(name)
        elif (
            report.when == "teardown"
            and name in self._good - self._bad
            # The first tier tries fewer examples than the second.
            and (
                os.environ.get(TIER_VARIABLE) != "first"
                or "is_hypothesis_test" not in report.keywords
            )
        ):
            _append(PASSED_VARIABLE, name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            note_fault()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ARG002 - by name
        """A worker is gone: who can tell what it would have run?"""
        if error:
            note_fault()


def note_fault() -> None:
    """Note that the run has failed whatever its tests do at a second try."""
    _append(FAILED_VARIABLE, FAULT)


def _append(variable: str, line: str) -> None:
    if variable in os.environ:
        with Path(os.environ[variable]).open("a") as file:
            file.write(line + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Book(), "dlctl-book")
