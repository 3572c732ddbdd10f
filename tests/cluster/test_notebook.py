"""The notebook of examples/notebook, run cell by cell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from repository import REPOSITORY

RUN = """\
import os, sys, nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute(env=dict(os.environ))
nbformat.write(book, sys.argv[2])
"""
NOTEBOOK = REPOSITORY / "examples/notebook/digits.ipynb"


def test_it_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)


@pytest.mark.slow
def test_it_submits_follows_plots_and_fetches(dlctl, site, tmp_path):
    for name in ("digits", "notebook"):
        shutil.copytree(REPOSITORY / "examples" / name, dlctl.cwd / name)
    copy = dlctl.cwd / "notebook" / NOTEBOOK.name
    copy.write_text(copy.read_text().replace("epochs = 20", "epochs = 2"))
    own = {name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, copy.name, "run.ipynb"], cwd=copy.parent, text=True,
        env=dlctl.env | own | {"DLCTL_SITE": site.name, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = {
        cell["id"]: cell for cell in json.loads((copy.parent / "run.ipynb").read_text())["cells"]
    }

    def told(name, kind="text/plain"):
        parts = [each.get("text") or each["data"].get(kind, "") for each in cells[name]["outputs"]]
        return "".join("".join(part) for part in parts)

    def html(name):
        return told(name, "text/html")

    assert f" at {site.name}>" in told("submit")
    assert "'COMPLETED'" in told("follow") and "learner-0 | epoch 2/2" in told("logs")
    for shown in (html("follow"), html("curve")):
        assert "<td style='text-align:left'>COMPLETED</td>" in shown
        assert "<polyline" in shown and "steps 23 to 46" in shown
    assert re.findall(r"step +(\d+): +[\d.]+% █+", told("columns")) == ["23", "46"]
    assert "608,141 model.pt" in told("fetch")
    (fetched,) = (copy.parent / "results").iterdir()
    assert (fetched / "model.pt").stat().st_size == 608141
    assert fetched.name in told("found")
