"""A model from a training that was halted before it wrote any result."""

from __future__ import annotations

from trainings import COUNTER, submit, wait_for_state, write_training


def test_a_halted_training_without_results_says_what_brings_some(dlctl, local_site, wait_until):
    command = {"command": "python count.py 1000"}
    folder = write_training(dlctl.cwd, command, {"count.py": COUNTER})
    training_id = submit(dlctl, local_site, folder)
    checkpoints = local_site.job_dir(training_id) / "checkpoints"
    wait_until(lambda: checkpoints.is_dir() and any(checkpoints.iterdir()))
    dlctl("halt", training_id, ok=True)
    wait_for_state(dlctl, wait_until, training_id, "HALTED")
    refused = dlctl("models", "create", "--from", training_id)
    assert refused.exit_code == 9
    assert f"{training_id} (HALTED) has no results" in refused.stderr
    assert f"dlctl resume {training_id}" in refused.stderr
    assert "models" not in [path.name for path in local_site.root.iterdir()]
