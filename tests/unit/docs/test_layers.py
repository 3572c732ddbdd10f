"""The import contracts of pyproject.toml can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repository import REPOSITORY

TURNED_ROUND = {
    "The rooms of dlctl stand in layers":
        ("dlctl/plan/render.py", "from dlctl.transport import base"),
    "The rooms of learner stand in layers":
        ("learner/job/status.py", "from learner.supervisor import steps"),
    "The rooms of psrv stand in layers": ("psrv/shard/shard.py", "from psrv.server import link"),
    "No circle of imports": ("learner/job/context.py", "from learner.job import outcome"),
    "The node side imports nothing of the login side":
        ("learner/job/metrics.py", "from dlctl import errors"),
    "The process that writes checkpoints":
        ("learner/checkpoint_files/disk.py", "import torch"),
    "The search knows neither": ("search/protocol/__init__.py", "import learner.errors"),
    "Only the lifecycle and checks of a site ask a scheduler":
        ("dlctl/logs/reader.py", "from dlctl.scheduler import base"),
}  # fmt: skip
"""A contract → a module and one wrong line in it."""


def test_one_wrong_line_breaks_each_contract(tmp_path):
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for package in ("dlctl", "learner", "psrv", "search"):
        shutil.copytree(REPOSITORY / package, tmp_path / package,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    for path, line in TURNED_ROUND.values():
        with (tmp_path / path).open("a") as module:
            module.write(f"\n{line}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    for contract in TURNED_ROUND:
        assert any(contract in line and "BROKEN" in line for line in lines), (contract, done.stdout)
