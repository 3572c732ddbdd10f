"""A training that dlctl 0.1 submitted continues to be read, resumed, fetched and exported.

`job-of-0.1.tar.xz` was recorded with commit 4c5a224: a halted training of one learner, with its
runtime. Paths stand in it as `@ROOT@` and `@PYTHON@`.
"""

from __future__ import annotations

import sys
import tarfile

import pytest
from repository import RECORDED

ID = "old-job-9kxv3xap"


@pytest.fixture
def old(tmp_path, xdg, dlctl):
    """The command, on a machine where an older dlctl has trained before."""
    root = tmp_path / "recorded"
    with tarfile.open(RECORDED / "job-of-0.1.tar.xz") as archive:
        archive.extractall(root)
    for path in root.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".sbatch"):
            text = path.read_text()
            path.write_text(text.replace("@ROOT@", str(root)).replace("@PYTHON@", sys.executable))
    dlctl.env |= {"XDG_STATE_HOME": str(root / "state"), "XDG_DATA_HOME": str(root / "data")}
    dlctl.cwd = root / "work"
    dlctl("adopt", "local", ok=True)  # its record has another name today
    return dlctl


@pytest.mark.slow
def test_an_old_training_is_read_resumed_fetched_and_exported(old, tmp_path):
    listed = old("list", "--json", ok=True).json
    assert [(row["training_id"], row["state"]) for row in listed] == [(ID, "HALTED")]
    shown = old("show", ID, "--json", ok=True).json
    assert shown["verdict"]["reason"] == "Halted on request."
    assert shown["learners"][0]["step"] == 112
    assert "ended, exit 85" in old("show", ID, "--all", ok=True).stdout
    assert "halt: halted on request" in old("logs", ID, ok=True).stdout
    checkpoints = old("checkpoints", "list", ID, "--json", ok=True).json
    assert [row["step"] for row in checkpoints] == [118, 100]
    old("checkpoints", "verify", ID, ok=True)

    old("resume", ID, "--follow", ok=True)
    shown = old("show", ID, "--json", ok=True).json
    assert (shown["state"], shown["attempt"]) == ("COMPLETED", 2)
    old("fetch", "results", ID, ok=True)
    fetched = old.cwd / "results" / ID
    assert (fetched / "model.pt").is_file()
    steps = [int(line.split(",")[0].rpartition(" ")[2])
             for line in (fetched / "metrics.jsonl").read_text().splitlines()]  # fmt: skip
    assert steps == sorted(steps) and steps[-1] == 320
    old("export", ID, "--format", "torchscript", "--output", tmp_path / "model.ts", ok=True)
    assert (tmp_path / "model.ts").stat().st_size > 0


@pytest.mark.slow
def test_an_old_training_is_resumed_by_the_new_runtime_when_it_asks_for_more(old):
    before = list((old.cwd.parent / "data/dlctl/runtime").iterdir())
    old("resume", ID, "--follow", "--time", "1h", ok=True)
    shown = old("show", ID, "--json", ok=True).json
    assert (shown["state"], shown["attempt"]) == ("COMPLETED", 2)
    runtimes = list((old.cwd.parent / "data/dlctl/runtime").iterdir())
    assert len(runtimes) == len(before) + 1
