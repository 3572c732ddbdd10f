"""Notices: from the node where it reaches the hook, else from the next dlctl that looks."""

from __future__ import annotations

import pytest
from people import webhook
from trainings import ON_THE_CLUSTER, run, state_of, write_training

from dlctl import contract


@pytest.fixture
def env(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    return {"no_proxy": "*"}


@ON_THE_CLUSTER
def test_start_and_end_are_told_once_each(dlctl, site, wait_until, env):
    with webhook() as hook:
        notify = {"webhook": hook.url, "command": "cat >>../told", "on": ["started", "finished"]}
        folder = write_training(dlctl.cwd, {"command": "true"}, learners=2, notify=notify)
        done, training_id = run(dlctl, site, folder)
        assert done.exit_code == 0, done.stderr
        job_dir = site.job_dir(training_id)

        def told():
            state_of(dlctl, training_id)  # a look while the node still tries leaves it the notice
            return any(got["event"] == "finished" for got in hook.got)

        wait_until(told, 60)
        state_of(dlctl, training_id)
        events = [got["event"] for got in hook.got]
    # The cluster's nodes reach no network: what happens between two looks is not told from here.
    least = ["finished"] if site.is_cluster else ["finished", "started"]
    assert sorted(events) in (least, ["finished", "started"]), events
    told = (job_dir / "told").read_text()
    assert told.count('"event": "finished"') == 1 and told.count('"event": "started"') == 1
    for path in job_dir.rglob("*.json"):
        assert "secret-token" not in path.read_text(), path
    assert "secret-token" not in (job_dir / contract.MANIFEST).read_text()


@pytest.mark.cluster
def test_slurm_sends_mails_where_there_is_no_mail_server(dlctl, cluster_site, wait_until):
    mails = cluster_site.cluster.logs / "mails"
    folder = write_training(
        dlctl.cwd, {"command": "true"}, notify={"email": "me@example.org", "on": ["finished"]}
    )
    done, training_id = run(dlctl, cluster_site, folder)
    assert done.exit_code == 0, done.stderr

    def mail():
        lines = mails.read_text().splitlines() if mails.exists() else []
        return next((line for line in lines if f"Name={training_id}.1 Ended" in line), "")

    assert wait_until(mail, 60, what="Slurm's mail").endswith("me@example.org")
