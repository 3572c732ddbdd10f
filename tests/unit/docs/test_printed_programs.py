"""The programs of docs/export.md, on the model of examples/digits, and of docs/cursor.md run."""

import contextlib
import dataclasses
import importlib
import os
import re
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
