"""Notices: from the node where it reaches the hook, else from the next dlctl that looks."""

from __future__ import annotations

import pytest
from people import webhook
from trainings import ON_THE_CLUSTER, change_site, run, state_of, write_training
from waiting import wait_until

from dlctl import contract

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@ON_THE_CLUSTER
def test_start_and_end_are_told_once_each(dlctl, site, xdg):
    with webhook() as hook:
        refused = write_training(dlctl.cwd, {"command": "true"}, notify={"webhook": hook.url})
        done, _ = run(dlctl, site, refused)
        assert done.exit_code == 3 and "webhook_hosts" in done.stderr, done.stderr
        site = change_site(site, xdg.config, webhook_hosts=["127.0.0.1"])
        notify = {
            "webhook": hook.url,
            "webhook_secret": SECRET,
            "command": "cat >>../told",
            "on": ["started", "finished"],
        }
        folder = write_training(dlctl.cwd, {"command": "true"}, learners=2, notify=notify)
        done, training_id = run(dlctl, site, folder, ok=True)
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
    assert {headers["webhook-id"] for headers, _ in hook.sent} == {
        f"{training_id}-{'0' if event == 'started' else '1'}-{event}" for event in events
    }
    assert all(headers["webhook-signature"].startswith("v1,") for headers, _ in hook.sent)
    assert told.count('"event": "finished"') == 1 and told.count('"event": "started"') == 1
    for path in job_dir.rglob("*.json"):
        assert "secret-token" not in path.read_text() and SECRET not in path.read_text(), path
    for name in (contract.MANIFEST, contract.SCRIPT, contract.job_output(1)):
        text = (job_dir / name).read_text()
        assert "secret-token" not in text and SECRET not in text, name


@pytest.mark.cluster
def test_slurm_sends_mails_where_there_is_no_mail_server(dlctl, cluster_site):
    mails = cluster_site.cluster.logs / "mails"
    folder = write_training(
        dlctl.cwd, {"command": "true"}, notify={"email": "me@example.org", "on": ["finished"]}
    )
    done, training_id = run(dlctl, cluster_site, folder, ok=True)

    def mail():
        lines = mails.read_text().splitlines() if mails.exists() else []
        return next((line for line in lines if f"Name={training_id}.1 Ended" in line), "")

    assert wait_until(mail, 60, what="Slurm's mail").endswith("me@example.org")
