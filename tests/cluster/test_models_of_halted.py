"""A model from a training that was halted before it wrote any result."""

from __future__ import annotations

from trainings import COUNTER, halt, submit, write_training
from waiting import wait_until


def test_a_halted_training_without_results_says_what_brings_some(dlctl, local_site):
    command = {"command": "python count.py 1000"}
    folder = write_training(dlctl.cwd, command, {"count.py": COUNTER})
    training_id = submit(dlctl, local_site, folder)
    checkpoints = local_site.job_dir(training_id) / "checkpoints"
    wait_until(lambda: checkpoints.is_dir() and any(checkpoints.iterdir()))
    halt(dlctl, training_id)
    refused = dlctl("models", "create", "--from", training_id)
    assert refused.exit_code == 9
    assert f"{training_id} (HALTED) has no results" in refused.stderr
    assert f"dlctl resume {training_id}" in refused.stderr
    assert "models" not in [path.name for path in local_site.root.iterdir()]
