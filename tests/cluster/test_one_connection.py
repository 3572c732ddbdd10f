"""The main road by one connection of the system's ssh, on a real Slurm."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import pytest
from trainings import change_site, state_of, submit, write_training

PROGRAM = "echo begun; sleep 1; echo $((6 * 7)) >$RESULT_DIR/answer; echo done"


@pytest.mark.cluster
def test_a_training_from_submission_to_results_by_one_connection(
    dlctl, cluster_site, xdg, tmp_path, monkeypatch
):
    log = Path(cluster_site.cluster.folder, "log/sshd.log")
    runtime = Path("/tmp", f"dlctl-{secrets.token_hex(4)}")  # a socket's path is short
    runtime.mkdir()
    dlctl.env["XDG_RUNTIME_DIR"] = str(runtime)
    site = change_site(cluster_site, xdg.config, transport={"kind": "openssh"})

    def connections() -> int:
        return log.read_text(errors="replace").count("Accepted ")

    folder = write_training(tmp_path / "job", {"command": PROGRAM})
    before = connections()
    try:
        training_id = submit(dlctl, site, folder)
        assert "done" in dlctl("logs", training_id, "--follow", ok=True).stdout
        assert state_of(dlctl, training_id)["state"] == "COMPLETED"
        dlctl("fetch", "results", training_id, "--to", tmp_path / "got", ok=True)
        assert next((tmp_path / "got").rglob("answer")).read_text() == "42\n"
        second = submit(dlctl, site, folder)
        dlctl("cancel", second, ok=True)
        assert connections() == before + 1
        cluster_site.cluster.ssh_drop()
        assert state_of(dlctl, second)["state"] == "CANCELLED"  # by a new connection
        assert connections() == before + 2
    finally:
        dlctl("sites", "disconnect", site.name, ok=True)
        shutil.rmtree(runtime)
