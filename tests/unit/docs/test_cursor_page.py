"""The example of docs/cursor.md runs as printed, by two learners at the same time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from repository import REPOSITORY


@pytest.mark.slow
def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/cursor.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with h5py.File(tmp_path / "train.h5", "w") as made:
        made["images"] = np.zeros((1000, 1, 2, 2), np.float32)
        made["labels"] = np.zeros(1000, np.int64)
    (tmp_path / "train.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    learners = [
        subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, env=env, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]  # fmt: skip
    said = [learner.communicate(timeout=120) for learner in learners]
    assert [learner.returncode for learner in learners] == [0, 0], said
    assert [errors for _, errors in said] == ["", ""]
    trained = [0, 0, 0]
    for output, _ in said:
        for number, samples in re.findall(r"^pass (\d): (\d+) samples$", output, re.MULTILINE):
            trained[int(number)] += int(samples)
    assert trained == [1000, 1000, 1000]
