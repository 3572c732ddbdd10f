"""The dlctl commands of the README's first screen, run as they are printed, on this machine."""

import json
import os
import re
import runpy
import subprocess
import sys

import pytest
import torch
from repository import REPOSITORY

README = REPOSITORY / "README.md"
FIRST_SCREEN = """\
make demo     # fresh machine → an environment, trains the example on this machine, follows it, fetches results
make test     # fresh machine → adds what tests need, and runs all that a cheap test can see: ten minutes
. .venv/bin/activate                          # from here on the shell knows dlctl

dlctl init my-training && cd my-training      # a manifest, a train.py, a .gitignore, ready to run
dlctl submit manifest.yml                     # on this machine; --site NAME for a cluster
dlctl logs --follow                           # no id: the latest training of this folder
dlctl fetch results                           # the trained model, the logs, the metrics → ./results/<training id>/
"""  # noqa: E501


def first_block():
    lines = README.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    "))
    end = next(i for i in range(start, len(lines)) if lines[i] and not lines[i].startswith("    "))
    return "\n".join(line[4:] for line in lines[start:end]).rstrip() + "\n"


@pytest.fixture(scope="session")
def shell_lines():
    return [line for line in first_block().splitlines() if line.startswith("dlctl")]


def test_the_first_screen_is_as_promised():
    assert first_block() == FIRST_SCREEN
    text = README.read_text(encoding="utf-8")
    before = text.partition("    make demo")[0]
    assert len(before.splitlines()) < 10
    assert "](docs/training.svg)" in before
    assert len(text.splitlines()) < 200


def run_as_printed(lines, xdg, folder):
    """Run the lines in one shell, as a person would, with this checkout's dlctl on the PATH."""
    program = folder / "bin/dlctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dlctl "$@"\n')
    program.chmod(0o755)
    env = xdg.env | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-eu", "-c", "\n".join(lines)], cwd=folder, env=env, capture_output=True,
        text=True, timeout=200, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
def test_the_first_screen_trains_and_fetches_a_model(shell_lines, xdg, tmp_path):
    done = run_as_printed(shell_lines, xdg, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "COMPLETED" in done.stdout
    folder = tmp_path / "my-training"
    (fetched,) = (folder / "results").iterdir()
    assert re.fullmatch(r"my-training-\w{8}", fetched.name)
    assert fetched.name in done.stdout

    plan = json.loads((fetched / "plan.json").read_text())
    assert (plan["site"], plan["training_id"]) == ("local", fetched.name)
    assert (fetched / "manifest.yml").read_text().startswith("name: my-training\n")
    assert (fetched / "logs/attempt-1-job.log").read_text().count("COMPLETED") == 1
    points = [json.loads(line) for line in (fetched / "metrics.jsonl").read_text().splitlines()]
    assert points[-1]["epoch"] == plan["training"]["epochs"]
    check_model(folder / "train.py", fetched)


def check_model(program, fetched):
    """The model is the one whose accuracy the metrics tell of."""
    state = torch.load(fetched / "model.pt", weights_only=True)
    parts = runpy.run_path(str(program))["build"]({"hidden": 64})
    parts["model"].load_state_dict(state)
    parts["model"].eval()
    inputs, targets = parts["validation"].tensors
    with torch.no_grad():
        accuracy = float(parts["metrics"]["accuracy"](parts["model"](inputs), targets))
    told = json.loads((fetched / "metrics.json").read_text())["final"]["validation_accuracy"]
    assert accuracy == pytest.approx(told, abs=0.01)
    assert accuracy > 0.8
