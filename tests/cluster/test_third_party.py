"""Frameworks of others: halted and continued. CI has XGBoost, `make test-frameworks` all of them.

Each test runs two attempts of a real framework, whose import alone takes seconds.
"""

from __future__ import annotations

import shutil

import pytest
import yaml
from third_party import python_of
from trainings import REPOSITORY, change_site, submit, wait_for_state

ROWS = {
    "tensorflow": ("tf", {"epochs": 40}), "jax": ("jax", {"steps": 1500}),
    "keras": ("jax", {"epochs": 100}), "lightning": ("pt", {"steps": 1500}),
    "huggingface": ("pt", {"steps": 1500}), "xgboost": ("xgb", {"rounds": 200}),
    "mpi": (None, {"steps": 1500}), "sklearn": (None, {"trees": 1500}),
}  # fmt: skip
"""For each framework its environment, and arguments by which the example trains long enough.

None: the nodes' own Python has it.
"""

WORDS = {"jax": "at step {}", "keras": "after epoch {}", "lightning": "from step={}.ckpt",
         "xgboost": "after round", "mpi": "at step {}", "sklearn": "at step {}"}  # fmt: skip
"""What an example says when it goes on."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.frameworks] * bool(ROWS[n][0])) for n in ROWS]
)
def test_it_is_halted_and_goes_on_where_it_was(name, dlctl, site, xdg, wait_until):
    venv, arguments = ROWS[name]
    python = python_of(venv, site) if venv else site.python
    folder = dlctl.cwd / "frameworks"
    shutil.copytree(REPOSITORY / "examples/frameworks", folder)
    manifest = yaml.safe_load((folder / f"{name}.yml").read_text())
    manifest["framework"]["arguments"] = arguments
    if site.is_cluster and manifest["learners"] == 2:
        manifest["nodes"] = 2
    (folder / "manifest.yml").write_text(yaml.safe_dump(manifest))
    changed = change_site(site, xdg.config, environment={"python": str(python)})
    training_id = submit(dlctl, changed, folder)
    saved = site.job_dir(training_id) / "checkpoints"
    wait_until(lambda: any(path.is_file() for path in saved.rglob("*")), 150)
    dlctl("halt", training_id, ok=True)
    known = wait_for_state(dlctl, wait_until, training_id, "HALTED", timeout_s=120)
    assert known["reason"] == "Halted on request."
    listed = dlctl("checkpoints", "list", training_id, "--json", ok=True).json
    assert listed[0]["complete"]
    assert listed[0]["step"] > 0
    dlctl("checkpoints", "verify", training_id, ok=True)
    done = dlctl("resume", training_id, "--follow", timeout_s=250)
    assert done.exit_code == 0, (done.stdout[-3000:], done.stderr)
    accuracy = float(done.stdout.partition("test accuracy ")[2].split()[0])
    assert accuracy > 0.9
    if name not in ("tensorflow", "huggingface"):  # these two go on without saying so
        assert f"continuing {WORDS[name].format(listed[0]['step'])}" in done.stdout
