"""The examples of the built-in loop train; digits does so in tests/cluster/test_main_road.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlctl import contract

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.mpi


def train(make_job: Callable[..., Any], name: str, epochs: int) -> dict[str, float]:
    manifest = yaml.safe_load((EXAMPLES / name / "manifest.yml").read_text())
    settings = manifest["training"]
    chosen = contract.Training(**{**settings, "epochs": epochs})
    job = make_job("", manifest["learners"], manifest["framework"]["arguments"], training=chosen)
    shutil.copytree(EXAMPLES / name, job.directory / contract.CODE, dirs_exist_ok=True)
    done = job.train()
    assert done.returncode == 0, done.stderr
    metrics = json.loads((job.directory / "results" / "metrics.json").read_text())
    return dict(metrics["final"])


@pytest.mark.long
def test_char_lm_learns(make_job: Callable[..., Any]) -> None:
    final = train(make_job, "char-lm", epochs=2)
    assert final["validation_bits_per_character"] < 3.6  # one letter of 68 by chance: 6.1
