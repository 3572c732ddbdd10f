"""A scheduler that is made up is found, checked and runs trainings: three new files, and a line in
two old ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from repository import REPOSITORY

NEW = {"login.py": "dlctl/scheduler/toy.py", "node.py": "learner/job/batch/toy.py",
       "toy.sh": "templates/schedulers/toy.sh"}  # fmt: skip
LINES = {
    "dlctl/scheduler/__init__.py": ("SCHEDULERS = {", '"toy": "dlctl.scheduler.toy.Toy", '),
    "learner/job/batch/__init__.py": ("for each in (", "Toy, "),
}
SITE = """\
transport: {kind: local}
scheduler: {kind: toy}
launcher: {kind: mpirun}
root: %s
environment: {python: auto}
"""
TRAINING = """\
name: made-up
framework: {name: own, command: 'echo "id $TOY_JOBID"; echo 1 >"$RESULT_DIR/one"'}
memory: 1MiB
time: 5m
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs dlctl as it is with the other scheduler."""
    copy = tmp_path / "dlctl"
    for name in ("dlctl", "learner", "psrv", "search", "templates", "site_configs"):
        shutil.copytree(REPOSITORY / name, copy / name,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    shutil.copy(REPOSITORY / "constraints.txt", copy)
    for name, place in NEW.items():
        shutil.copy(REPOSITORY / "tests/support/toy_scheduler" / name, copy / place)
    for name, (after, line) in LINES.items():
        text = (copy / name).read_text()
        assert text.count(after) == 1
        text = text.replace(after, after + line)
        if "batch" in name:
            text = text.replace("\n__all__", "\nfrom learner.job.batch.toy import Toy\n\n__all__")
        (copy / name).write_text(text)
    (tmp_path / "config/dlctl/sites").mkdir(parents=True)
    (tmp_path / "config/dlctl/sites/toy.yml").write_text(SITE % (tmp_path / "root"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/manifest.yml").write_text(TRAINING)
    env = {**os.environ, "PYTHONPATH": str(copy), "XDG_CONFIG_HOME": str(tmp_path / "config"),
           "XDG_STATE_HOME": str(tmp_path / "state")}  # fmt: skip

    def call(*words):
        done = subprocess.run(
            [sys.executable, "-m", "dlctl", *words], cwd=tmp_path / "mine", env=env,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout if "--json" in words else done.stdout + done.stderr

    return call


@pytest.mark.slow
def test_a_made_up_scheduler_is_found_and_checked(run, tmp_path):
    added = json.loads(
        run("sites", "add", "found", "local", "--root", str(tmp_path / "r"), "--json")
    )
    assert (added["scheduler"], added["partitions"]) == ("Toy 1", "all")
    file = tmp_path / "config/dlctl/sites/found.yml"
    text = file.read_text()
    assert "all: 1 of its nodes are down" in text
    file.write_text(
        text.replace("cpus_per_node: 4", "cpus_per_node: 8").replace("python: null", "python: auto")
    )
    told = {each["name"]: each for each in json.loads(run("doctor", "found", "--json"))}
    assert (told["toy"]["state"], told["toy"]["evidence"]) == ("ok", "Toy 1")
    assert "cpus_per_node 8, the site has 4" in told["partition all"]["evidence"]
    assert told["root"]["state"] == told["sent files"]["state"] == "ok"


@pytest.mark.slow
def test_a_made_up_scheduler_trains(run, tmp_path):
    assert "\n#TOY tasks=1\n" in run("render", "manifest.yml", "--site", "toy")
    assert "next: dlctl logs --follow" in run("submit", "manifest.yml", "--site", "toy")
    said = run("logs", "--follow")
    job_id = next((tmp_path / "root/toy").iterdir()).name
    assert f"id {job_id}" in said and "COMPLETED" in said
    run("fetch", "results", "--to", str(tmp_path / "got"))
    assert [path.read_text() for path in (tmp_path / "got").rglob("one")] == ["1\n"]
