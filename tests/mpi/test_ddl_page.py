"""docs/ddl.md's script for one process, and the six lines that make it distributed, as printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mpi_programs import mpi_command, mpi_environment

pytestmark = pytest.mark.mpi
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "ddl-digits"
PAGE = (REPOSITORY / "docs" / "ddl.md").read_text()


def block(language):
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)
    assert len(found) == 1
    return str(found[0])


def patched(text, diff):
    """Apply a unified diff."""
    before, after = text.splitlines(keepends=True), []
    at = 0
    for line in diff.splitlines(keepends=True)[2:]:
        if found := re.match(r"@@ -(\d+)", line):
            start = int(found[1]) - 1
            after += before[at:start]
            at = start
            continue
        if line[0] in " -":
            assert before[at] == line[1:], f"line {at + 1}"
            at += 1
        if line[0] in " +":
            after.append(line[1:])
    return "".join(after + before[at:])


@pytest.mark.first
def test_the_difference_is_at_most_six_lines():
    lines = block("diff").splitlines()[2:]
    added = [line for line in lines if line.startswith("+")]
    removed = [line for line in lines if line.startswith("-")]
    assert len(removed) <= len(added) <= 6


@pytest.mark.first
def test_the_example_is_what_the_page_makes():
    assert patched(block("python"), block("diff")) == (EXAMPLE / "train.py").read_text()


def best_accuracy(folder, *command):
    environment = mpi_environment(RESULT_DIR=str(folder))
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^epoch \d+: test accuracy ([\d.]+)$", done.stdout, re.M)
    assert [float(a) for a in found] == sorted({float(a) for a in found}), "said by one learner"
    return float(found[-1])


def test_page_runs_as_printed(tmp_path, zygote):
    import torch

    shutil.copytree(EXAMPLE / "data", tmp_path / "data")
    (tmp_path / "single.py").write_text(block("python"))
    (tmp_path / "train.py").write_text(patched(block("python"), block("diff")))
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    single = best_accuracy(tmp_path, *zygote.rank(), "single.py")
    assert single >= 0.94
    for command in (
        [*zygote.rank(), "train.py"],
        [*mpi_command(2, zygote.rank()), "train.py"],
        [*torchrun, "--nproc-per-node=2", "train.py"],
    ):
        (tmp_path / "model.pt").unlink()
        assert abs(best_accuracy(tmp_path, *command) - single) <= 0.03, command
        saved = torch.load(tmp_path / "model.pt", weights_only=True)
        assert [tuple(value.shape) for value in saved.values()] == [
            (128, 64), (128,), (10, 128), (10,)
        ]  # fmt: skip
