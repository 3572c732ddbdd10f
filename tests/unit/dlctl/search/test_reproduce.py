"""The manifest that runs one trial again."""

import pytest
import yaml

from dlctl.manifest.load import parse_manifest
from dlctl.search.load import load_search
from dlctl.search.sent import task_again, training_again
from dlctl.search.trials import TrialRow

TRAINING = """\
name: digits
learners: 1
framework: {name: pytorch, job: train.py, arguments: {lr: 0.1, layers: [8, 8]}}
training: {epochs: 2, seed: 5}
env: {A: b}
space:
  framework.arguments.lr: {float: [1e-9, 1], log: true}
  training.batch_size: {choice: [32, 64]}
metric: {name: accuracy, goal: maximize}
budget: {trials: 3}
workers: {jobs: 2}
"""
TASK = """\
name: quad
space:
  x: {float: [1e-12, 1], log: true}
  kind: {choice: [a, "no", 1]}
  m: {int: [1, 9], when: {kind: a}}
strategy: {name: genetic, seed: 7, population: 10}
metric: {name: loss}
budget: {trials: 40, time: 2h}
task: {python: "trials:Quadratic", arguments: {epochs: 3}, time: 1m, memory: 256MiB, cpus: 2}
workers: {jobs: 2, slots: 4, time: 10m, partition: short}
hub: {partition: long}
"""


def test_a_training_becomes_its_manifest():
    point = {"framework.arguments.lr": 1.2345678901234567e-08, "training.batch_size": 64}
    text = yaml.safe_dump(training_again(yaml.safe_load(TRAINING), TrialRow(3, "a", point)))
    manifest = parse_manifest(text.encode(), "best.yml")
    assert manifest.framework.arguments == {"lr": 1.2345678901234567e-08, "layers": [8, 8]}
    assert (manifest.training.epochs, manifest.training.seed) == (2, 5)
    assert manifest.training.batch_size == 64 and manifest.name == "digits"
    assert "env" in text and "space" not in text and "workers" not in text


@pytest.mark.parametrize("point", [
    {"x": 0.1 + 0.2, "kind": "no"}, {"x": 3.3e-12, "kind": "a", "m": 9}, {"x": 1.0, "kind": 1},
])  # fmt: skip
def test_another_task_becomes_a_search_of_one_point(tmp_path, point):
    (tmp_path / "search.yml").write_text(TASK)
    spec = load_search(tmp_path / "search.yml").spec
    made = task_again(yaml.safe_load(TASK), spec, TrialRow(3, "a", point))
    (tmp_path / "best.yml").write_text(yaml.safe_dump(made, sort_keys=False))
    again = load_search(tmp_path / "best.yml").spec
    assert {p.name: p.choices for p in again.space} == {k: [v] for k, v in point.items()}
    assert (again.strategy, again.budget.trials, again.task) == ("grid", 1, spec.task)
    assert (again.workers.slots, again.workers.partition, again.metric) == (1, "short", "loss")
