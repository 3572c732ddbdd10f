"""Benchmarks do not rot: each group runs with its smallest load; it starts a cluster by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY))
from benchmarks.__main__ import PACKAGES
from benchmarks.smoke import OTHERS


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1000)  # more than a group may take
@pytest.mark.parametrize("group", [*PACKAGES, *OTHERS])
def test_a_group_of_benchmarks_yields_all_its_results(group):
    argv = [sys.executable, "-m", "benchmarks", "--smoke", group]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate()
        finally:
            process.terminate()  # it ends what it has started
    assert process.returncode == 0, said
