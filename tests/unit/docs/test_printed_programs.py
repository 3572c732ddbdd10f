"""What pages print runs: docs/export.md's and docs/cursor.md's programs, the README's commands."""

import contextlib
import dataclasses
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from repository import REPOSITORY

from dlctl import contract
from learner.errors import UserFault
from learner.export import FORMATS, formats
from learner.export import __main__ as job

SNIPPETS = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/export.md").read_text(), re.S)


def test_there_is_a_snippet_for_each_format_and_one_for_programs():
    assert len(SNIPPETS) == len(FORMATS) + 1
    for fmt in formats.FORMATS.values():
        assert sum(f'"model.{fmt.suffix}"' in snippet for snippet in SNIPPETS) == 1


@pytest.fixture(scope="session")
def job_dir(tmp_path_factory):
    """A job directory of a digits training that has ended, with weights of no training."""
    from scheduler_plan import make_plan

    folder = tmp_path_factory.mktemp("jobs") / "t-1"
    shutil.copytree(REPOSITORY / "examples/digits", folder / "code")
    plan = dataclasses.replace(
        make_plan(job_dir=str(folder), root=str(folder.parent)),
        framework=contract.Framework("pytorch", None, None, "train.py"),
    )
    contract.write_whole(folder / contract.PLAN, contract.to_json(plan))
    (folder / "results").mkdir()
    with alone(folder / "code"):
        parts = importlib.import_module("train").build({})
    torch.save(parts["model"].state_dict(), folder / "results/model.pt")
    index = contract.ResultsIndex([contract.ResultFile("model.pt", 1, "0")])
    contract.write_whole(folder / contract.RESULTS_INDEX, contract.to_json(index))
    return folder


@contextlib.contextmanager
def alone(*path):
    """Put back what a program changes of its process."""
    environ, folder, threads = dict(os.environ), Path.cwd(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*map(str, path), *sys.path])
        patch.setattr(sys, "dont_write_bytecode", True)
        yield
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    torch.set_num_threads(threads)
    for name in ("train", "dlctl_user_program"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("format", FORMATS)
def test_a_job_directory_is_exported_and_served_as_the_page_says(format, job_dir, monkeypatch):
    suffix = formats.FORMATS[format].suffix
    with alone():
        answer = job.main([str(job_dir), "--format", format])
    path = job_dir / "results" / f"model.{suffix}"
    assert (answer["path"], answer["step"]) == (f"results/model.{suffix}", None)
    assert "further input 1" in answer["checked"]
    index = contract.read_record(contract.ResultsIndex, job_dir / contract.RESULTS_INDEX)
    [mine] = [file for file in index.files if file.path == path.name]
    assert (mine.size_bytes, mine.sha256) == (path.stat().st_size, answer["sha256"])
    assert "model.pt" in [file.path for file in index.files]
    [snippet] = [s for s in SNIPPETS if f'"model.{suffix}"' in s]
    monkeypatch.chdir(path.parent)
    names: dict = {}
    with alone(job_dir / "code"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*treespec", FutureWarning)
        exec(compile(snippet, "docs/export.md", "exec"), names)
    assert tuple(names["scores"].shape) == (5, 10)


def test_a_program_of_the_users_own_exports_as_the_page_says(tmp_path, monkeypatch, capsys):
    [snippet] = [s for s in SNIPPETS if "learner.export" in s]
    with alone():
        monkeypatch.setenv("RESULT_DIR", str(tmp_path))
        exec(compile(snippet, "docs/export.md", "exec"), {})
        monkeypatch.delenv("RESULT_DIR")
    assert (tmp_path / "mine.onnx").exists()
    assert len(capsys.readouterr().out.split()[0]) == 64


def test_what_is_missing_is_one_sentence(job_dir, tmp_path):
    with alone():
        with pytest.raises(UserFault, match="there is no plan.json"):
            job.main([str(tmp_path), "--format", "torchscript"])
        with pytest.raises(UserFault, match="there is no whole checkpoint"):
            job.main([str(job_dir), "--format", "torchscript", "--checkpoint", "newest"])
        with pytest.raises(UserFault, match="there is no checkpoint '7'"):
            job.main([str(job_dir), "--format", "torchscript", "--checkpoint", "7"])


@pytest.mark.slow
def test_the_cursors_example_runs_as_printed_by_two_learners_at_once(tmp_path):
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


# The README's first screen -----------------------------------------------------------------------

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


# docs/own-script.md: from a script to a fetched model -------------------------------------------

OWN_SCRIPT = (REPOSITORY / "docs/own-script.md").read_text(encoding="utf-8")


def own_lines(head):
    """Return the commands of a block, without what its comments say."""
    block = OWN_SCRIPT.partition(head)[2].lstrip("\n").split("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


@pytest.mark.slow
def test_a_script_of_ones_own_goes_from_a_clone_to_a_fetched_model_as_the_page_says(xdg, tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", OWN_SCRIPT, re.S)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text(script)
    again = own_lines("then the difference:")
    assert len(again) == 3
    lines = [
        *own_lines("In that folder:"),
        *again,
        "dlctl wait @latest || true",
        "dlctl note @latest",
    ]
    done = run_as_printed(lines, xdg, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (fetched,) = (folder / "results").iterdir()
    assert torch.load(fetched / "model.pt", weights_only=True)["0.weight"].shape == (32, 8)
    assert re.search(r"^train loss +0\.\d+ ", done.stdout, re.MULTILINE)
    assert "On a plateau?" in done.stdout
    assert "python train.py --lr 0.02" in done.stdout
    assert done.stdout.rstrip().endswith("twice the rate")
